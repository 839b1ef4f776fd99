"""Who may record at once. Kineto has one session a process; whatever takes Python stacks clashes pairwise.

Callbacks that record exactly the same windows share a recorder. Others that would clash are refused before training
where that can be proved, and otherwise the later one steps aside.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from composer.core import State

from composer_memprof.callbacks.framework import composer_profiler
from composer_memprof.recorders import kineto
from composer_memprof.recorders.python_calls import active_tracer
from composer_memprof.schedule.overlap import first_common_batch

if TYPE_CHECKING:
    from composer_memprof.callbacks.framework.base import ProfilingCallback

KINETO = 'kineto'
ALLOCATOR_HISTORY = 'allocator_history'
PYTHON_STACKS = 'python_stacks'


@dataclass(frozen=True)
class _Holder:
    session: object
    callback: weakref.ref[ProfilingCallback]


#: Who holds what right now, in this process.
_held: dict[str, _Holder] = {}


def claim(callback: ProfilingCallback, state: State) -> Optional[str]:
    """Take the callback's resources; returns the name of who has one of them already, and then takes none.

    A holder from another Trainer is one whose training broke off, and was never closed: its recording is ended first.
    """
    for resource in callback.resources:
        holder = _held.get(resource)
        if holder is None or holder.session is callback.session:
            continue
        other = holder.callback()
        if other is not None and other.is_at_work_in(state):
            if not other.stand_down():
                return type(other).__name__
        elif other is not None:
            other.break_off()
        release(holder.session)
    if KINETO in callback.resources and KINETO not in _held and kineto.is_profiling():
        return 'another torch profiler'
    if PYTHON_STACKS in callback.resources and PYTHON_STACKS not in _held:
        follower = active_tracer.active_tracer()
        if follower is not None:
            return follower
    for resource in callback.resources:
        _held.setdefault(resource, _Holder(callback.session, weakref.ref(callback)))
    return None


def claim_idle(callback: ProfilingCallback, session: object, state: State) -> bool:
    """Take the callback's resources for ``session``, which gives way to everybody, where nobody has any of them."""
    if any(resource in _held for resource in callback.resources):
        return False
    if KINETO in callback.resources and (kineto.is_profiling() or composer_profiler.composer_wants_batch(state)):
        return False
    if PYTHON_STACKS in callback.resources and active_tracer.active_tracer() is not None:
        return False
    for resource in callback.resources:
        _held[resource] = _Holder(session, weakref.ref(callback))
    return True


def release(session: object) -> None:
    """Give back all that ``session`` holds."""
    for resource in [resource for resource, holder in _held.items() if holder.session is session]:
        del _held[resource]


def kineto_for(callback: ProfilingCallback, state: State, arguments: Mapping[str, Any]) -> kineto.KinetoRecorder:
    """The session to record with: of a callback before this one with the same windows, or a new one."""
    for other in _ours_before(callback, state):
        if other.kineto is not None and callback.when == other.when:
            other.kineto.widen(**arguments)
            return other.kineto
    return kineto.KinetoRecorder(**arguments)


def refuse_overlap(callback: ProfilingCallback, state: State) -> None:
    """Refuse two callbacks that can't record at once, and provably would.

    Raises:
        ValueError: naming both, and the batch.
    """
    for other in _ours_before(callback, state):
        if not callback.resources & other.resources or callback.session is other.session:
            continue
        if 'train' not in callback.when.stages & other.when.stages:
            continue
        ranks = [
            rank for rank in _sample_ranks(callback, other) if callback.may_run_on(rank) and other.may_run_on(rank)
        ]
        batch = first_common_batch(other.when.schedule, callback.when.schedule, ranks)
        if batch is not None:
            may_share = callback.kineto is not None and other.kineto is not None
            raise ValueError(
                f'schedule: {type(other).__name__} and {type(callback).__name__} would both record batch {batch} '
                f'(from where the run starts), but {_why(callback.resources & other.resources)}; give them '
                + ('the same schedule, to share one session, or ' if may_share else '')
                + 'windows apart from each other'
            )


def _ours_before(callback: ProfilingCallback, state: State) -> list[ProfilingCallback]:
    from composer_memprof.callbacks.framework.base import ProfilingCallback

    before = state.callbacks[: state.callbacks.index(callback)] if callback in state.callbacks else []
    return [other for other in before if isinstance(other, ProfilingCallback)]


def _sample_ranks(*callbacks: ProfilingCallback) -> list[int]:
    """Each rank that is treated differently, and one that is not."""
    named = {rank for callback in callbacks for rank in callback.when.schedule.named_ranks()}
    named |= {rank for callback in callbacks for rank in callback.when.ranks or ()}
    return [*sorted(named), max(named, default=-1) + 1]


def _why(resources: frozenset[str]) -> str:
    if KINETO in resources:
        return "torch's profiler has one session a process"
    if ALLOCATOR_HISTORY in resources:
        return 'the allocator keeps one history a process'
    return 'only one tool at a time can follow Python calls'
