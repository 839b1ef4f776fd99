"""Capture: each recorder works without a Trainer, knows no Composer and no files, and returns plain data.

One room a source: ``allocations``, ``modules``, ``saved_tensors``, ``functions``, ``host``, ``flops``, ``python_calls``;
``kineto`` is torch's profiler. What several of them need stands beside the rooms.
"""
