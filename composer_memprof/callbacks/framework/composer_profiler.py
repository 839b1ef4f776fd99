"""Composer's own Profiler beside our callbacks: the batches that it records are left to it."""

from __future__ import annotations

from composer.core import State
from composer.profiler import ProfilerAction
from composer.profiler import TorchProfiler as ComposerTorchProfiler

from composer_memprof.messages import warn


def is_present(state: State) -> bool:
    """Whether Composer's own TorchProfiler is among the Trainer's callbacks."""
    return state.profiler is not None and any(isinstance(cb, ComposerTorchProfiler) for cb in state.callbacks)


def wants_batch(state: State) -> bool:
    """Whether Composer's own TorchProfiler records, or warms up for, the batch about to start."""
    if not is_present(state):
        return False
    assert state.profiler is not None
    return state.profiler.schedule(state) != ProfilerAction.SKIP


def explain(name: str) -> None:
    """Warn that the callback ``name`` leaves Composer's batches alone, and how to have it record them."""
    warn(
        f"{name} does not record the batches that Composer's own TorchProfiler records. To let {name} follow the "
        "Profiler's schedule instead, switch Composer's off: Profiler(..., torch_prof_record_shapes=False, "
        'torch_prof_profile_memory=False, torch_prof_with_stack=False, torch_prof_with_flops=False)'
    )
