"""Blocks of memory, from the events of a recording: lifetimes, call stacks, batches and phases."""
