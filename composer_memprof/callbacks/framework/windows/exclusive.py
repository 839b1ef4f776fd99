"""Which callbacks may record at the same time.

torch's profiler (Kineto) has one session a process, the CUDA allocator one history, and only one tool at a time can
follow Python calls. Callbacks that record exactly the same windows share one session. Other conflicts are refused
before training where they can be proved; otherwise the later callback skips or postpones its window.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Protocol

from composer.core import State

from composer_memprof.callbacks.framework.options import When
from composer_memprof.callbacks.framework.windows import composer_profiler
from composer_memprof.recorders import kineto
from composer_memprof.recorders.python_calls import active_tracer
from composer_memprof.schedule.overlap import first_common_batch, sample_ranks

KINETO = 'kineto'
ALLOCATOR_HISTORY = 'allocator_history'
PYTHON_STACKS = 'python_stacks'


class Claimant(Protocol):
    """What this module needs of a callback."""

    when: When
    #: What a recording of this callback needs for itself, of the three names above.
    resources: frozenset[str]
    #: The session of torch's profiler that it records with, if any; callbacks with equal windows share one.
    kineto: Optional[kineto.KinetoRecorder]

    @property
    def session(self) -> object:
        """The owner of its resources: callbacks that share a session return the same object."""

    def records_for(self, state: State) -> bool:
        """Whether it records the training of ``state``."""

    def yield_resources(self) -> bool:
        """Release the resources for another callback's window. False: they are needed here."""

    def end_abandoned_recording(self) -> None:
        """Save and end a recording whose training failed and whose Trainer was never closed."""


@dataclass
class _Holder:
    """A session, its thread, and the callbacks that record with it now: the last of them gives the resource back."""

    session: object
    thread: threading.Thread = field(default_factory=threading.current_thread)
    callbacks: list[weakref.ref[Claimant]] = field(default_factory=list)

    def add(self, callback: Claimant) -> None:
        self.remove(callback)
        self.callbacks.append(weakref.ref(callback))

    def remove(self, callback: Claimant) -> None:
        self.callbacks = [other for other in self.callbacks if other() not in (None, callback)]

    def trains_beside(self) -> bool:
        """True if it belongs to a training on another thread that goes on."""
        return self.thread is not threading.current_thread() and self.thread.is_alive()


#: Who holds each resource of this process now.
_held: dict[str, _Holder] = {}
#: Trainings may run on several threads.
_lock = threading.RLock()


@dataclass(frozen=True)
class Obstacle:
    """Why a window cannot be recorded now, and what to do about it."""

    reason: str
    advice: str

    def __str__(self) -> str:
        return f'{self.reason}. {self.advice}'


def held_by(name: str) -> Obstacle:
    """The obstacle that ``name``, which has a schedule too, records."""
    return Obstacle(f'{name} is recording', 'Use schedules that do not overlap')


def claim(callback: Claimant, state: State) -> Optional[Obstacle]:
    """Take the callback's resources. Returns None, or what is in the way; then none is taken.

    A holder that belongs to another Trainer trains on another thread, and is left alone; or its training failed and it was
    never closed, and its recording is ended first.
    """
    with _lock:
        return _claim(callback, state)


def _claim(callback: Claimant, state: State) -> Optional[Obstacle]:
    for resource in callback.resources:
        holder = _held.get(resource)
        if holder is None or holder.session is callback.session:
            continue
        for other in [reference() for reference in holder.callbacks]:
            if other is not None and other.records_for(state):
                if not other.yield_resources():
                    return held_by(type(other).__name__)
            elif other is not None and holder.trains_beside():
                return held_by(f'{type(other).__name__} of a Trainer on another thread')
            elif other is not None:
                other.end_abandoned_recording()
        _free(holder.session)
    foreign = _foreign_holder(callback)
    if foreign is not None:
        advice = f'Stop it before the window of {type(callback).__name__}, or leave it out of this run'
        return Obstacle(f'{foreign} is recording', advice)
    _hold(callback, callback.session)
    return None


def claim_if_free(callback: Claimant, session: object, state: State) -> bool:
    """Take the callback's resources for ``session`` if nothing else needs any of them now."""
    with _lock:
        if any(resource in _held for resource in callback.resources) or _foreign_holder(callback) is not None:
            return False
        if KINETO in callback.resources and composer_profiler.wants_batch(state):
            return False
        _hold(callback, session)
        return True


def _hold(callback: Claimant, session: object) -> None:
    for resource in callback.resources:
        _held.setdefault(resource, _Holder(session)).add(callback)


def _foreign_holder(callback: Claimant) -> Optional[str]:
    """A profiler that is not ours and has one of the callback's resources."""
    if KINETO in callback.resources and KINETO not in _held and kineto.is_profiling():
        return 'another torch profiler'
    if PYTHON_STACKS in callback.resources and PYTHON_STACKS not in _held:
        return active_tracer.active_tracer()
    return None


def release(callback: Claimant, session: object) -> None:
    """Give back what ``callback`` holds for ``session``; callbacks that share the session keep it."""
    with _lock:
        _release(callback, session)


def _release(callback: Claimant, session: object) -> None:
    for resource, holder in list(_held.items()):
        if holder.session is session:
            holder.remove(callback)
            if not holder.callbacks:
                del _held[resource]


def _free(session: object) -> None:
    for resource in [resource for resource, holder in _held.items() if holder.session is session]:
        del _held[resource]


def kineto_for(callback: Claimant, earlier: Sequence[Claimant], arguments: Mapping[str, Any]) -> kineto.KinetoRecorder:
    """The profiler session to record with: that of an earlier callback with equal windows, or a new one.

    A shared session needs at once what any of its callbacks needs, whichever of them starts it.
    """
    for other in earlier:
        if other.kineto is not None and callback.when == other.when:
            other.kineto.widen(**arguments)
            callback.resources |= other.resources
            for sharing in earlier:
                if sharing.kineto is other.kineto:
                    sharing.resources = callback.resources
            return other.kineto
    return kineto.KinetoRecorder(**arguments)


def refuse_overlap(callback: Claimant, earlier: Sequence[Claimant]) -> None:
    """Refuse a callback that can't record beside an earlier one in some batch, where that can be proved.

    Raises:
        ValueError: naming both, and the batch.
    """
    for other in earlier:
        shared = callback.resources & other.resources
        if not shared or callback.session is other.session or 'train' not in callback.when.stages & other.when.stages:
            continue
        ranks = [
            rank
            for rank in _sample_ranks(callback, other)
            if callback.when.may_run_on(rank) and other.when.may_run_on(rank)
        ]
        batch = first_common_batch(other.when.schedule, callback.when.schedule, ranks)
        if batch is not None:
            same = 'the same schedule, to share one session, or ' if callback.kineto and other.kineto else ''
            raise ValueError(
                f'schedule: {type(other).__name__} and {type(callback).__name__} would both record batch {batch} '
                f'(counted from where the run starts), but {_reason(shared)}; give them {same}schedules that do not '
                'overlap'
            )


def _sample_ranks(*callbacks: Claimant) -> list[int]:
    """A rank of each kind that the callbacks tell apart."""
    schedules = [callback.when.schedule for callback in callbacks]
    named = {rank for schedule in schedules for rank in schedule.named_ranks()}
    named |= {rank for callback in callbacks for rank in callback.when.ranks or ()}
    return sample_ranks(named, {rank for schedule in schedules for rank in schedule.named_local_ranks()})


def _reason(resources: frozenset[str]) -> str:
    if KINETO in resources:
        return "torch's profiler has one session a process"
    if ALLOCATOR_HISTORY in resources:
        return 'the allocator keeps one history a process'
    return 'only one tool at a time can follow Python calls'
