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
    return is_present(state) and is_active(state)


def has_trace_handlers(state: State) -> bool:
    """Whether the Trainer has a Profiler that merges the traces of others into its own."""
    return state.profiler is not None and bool(state.profiler.trace_handlers)


def is_active(state: State) -> bool:
    """Whether the Profiler records, or warms up for, the batch about to start."""
    assert state.profiler is not None
    return state.profiler.schedule(state) != ProfilerAction.SKIP


def explain_missing(name: str, batch: int) -> None:
    """Warn that the Profiler's merged trace lacks a window of the callback ``name``, and what to do."""
    warn(
        f"{name}'s window that ends at batch {batch} is missing in the trace of the Trainer's Profiler, whose schedule "
        f'skips this batch. To have both in one trace, leave out the schedule of {name}, which then follows the '
        "Profiler's, or merge the files by python -m composer.profiler.json_trace_merger"
    )


def explain(name: str) -> None:
    """Warn that the callback ``name`` leaves Composer's batches alone, and how to have it record them."""
    warn(
        f"{name} does not record the batches that Composer's own TorchProfiler records. To let {name} follow the "
        "Profiler's schedule instead, switch Composer's off: Profiler(..., torch_prof_record_shapes=False, "
        'torch_prof_profile_memory=False, torch_prof_with_stack=False, torch_prof_with_flops=False)'
    )
