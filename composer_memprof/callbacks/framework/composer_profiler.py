"""Composer's own Profiler beside ours: the batches that it records are left to it."""

from __future__ import annotations

from composer.core import State
from composer.profiler import ProfilerAction
from composer.profiler import TorchProfiler as ComposerTorchProfiler

from composer_memprof.messages import warn


def has_composer_torch_profiler(state: State) -> bool:
    return state.profiler is not None and any(isinstance(cb, ComposerTorchProfiler) for cb in state.callbacks)


def composer_wants_batch(state: State) -> bool:
    """Whether Composer's own TorchProfiler records, or warms up for, the batch about to start."""
    if not has_composer_torch_profiler(state):
        return False
    assert state.profiler is not None
    return state.profiler.schedule(state) != ProfilerAction.SKIP


def explain_composer_profiler(name: str) -> None:
    warn(
        f"{name} keeps out of the batches that Composer's own TorchProfiler records. To let {name} serve the "
        "Profiler's schedule instead, switch Composer's off: Profiler(..., torch_prof_record_shapes=False, "
        'torch_prof_profile_memory=False, torch_prof_with_stack=False, torch_prof_with_flops=False)'
    )
