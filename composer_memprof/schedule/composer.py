"""Our schedules as the ``prof_schedule`` of Composer's own profiler."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Optional, Protocol

from composer.core import State
from composer.profiler import ProfilerAction

from composer_memprof.schedule.clocks import BatchClock, BatchStartClock, Clock, TrainClock, ZeroClock
from composer_memprof.schedule.cursor import BatchDecision, Cursor


class Bindable(Protocol):
    """What this module needs of a schedule."""

    @property
    def counts_only_batches(self) -> bool:
        """Whether all of its lengths are in batches."""

    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        """A cursor that counts from the clock's time now."""


class ComposerView:
    """Steps a schedule for Composer's profiler, which asks several times for one batch, and for batch 0 at INIT.

    Keeps the action of the current batch and the state before it. If the batch count jumps (a resumed run), it steps
    again from batch 0.
    """

    def __init__(self, schedule: Bindable, state: State) -> None:
        self._schedule = schedule
        self._state: Callable[[], Optional[State]]
        try:
            self._state = weakref.ref(state)
        except TypeError:  # a stand-in for State, such as a SimpleNamespace
            self._state = lambda: state
        self._position: Optional[tuple[float, float]] = None
        self._epoch_length: Optional[int] = None
        self._action = ProfilerAction.SKIP
        self._cursor: Optional[Cursor] = None
        self._has_unsaved = False
        self._cursor_before: Optional[Cursor] = None
        self._had_unsaved_before = False

    def is_of(self, state: State) -> bool:
        return self._state() is state

    def action(self, state: State) -> ProfilerAction:
        """The action for the batch about to start."""
        # Composer asks at the end of the batch before, so that its profiler can save there.
        clock = BatchStartClock(TrainClock(state), self._learn_epoch_length(state))
        position = (clock.read('ba'), clock.read('ep'))
        if position == self._position:
            return self._action
        if self._position is not None and position[0] == self._position[0]:
            # Composer asked at the end of the batch before; since then the epoch has advanced, which was not foreseen.
            self._cursor, self._has_unsaved = self._cursor_before, self._had_unsaved_before
        elif self._cursor is None or self._position is None or position[0] != self._position[0] + 1:
            self._has_unsaved = False
            self._cursor = self._step_from_start(clock, state)
        if self._cursor is None:
            return ProfilerAction.SKIP
        decision, cursor = self._cursor.step(clock)
        if decision.active and not decision.joined and not self._has_unsaved and _is_over(clock, state):
            return ProfilerAction.SKIP  # its trace would replace the last window's, by the same name
        self._cursor_before, self._had_unsaved_before = self._cursor, self._has_unsaved
        self._cursor = cursor
        self._position = position
        self._action = self._as_action(decision, clock)
        return self._action

    def _learn_epoch_length(self, state: State) -> Optional[int]:
        """The number of training batches in an epoch, if it is known. During an evaluation it stays as it was."""
        if getattr(state, 'dataloader', None) is getattr(state, 'train_dataloader', None):
            length = state.dataloader_len
            self._epoch_length = None if length is None else int(length)
        return self._epoch_length

    def _step_from_start(self, clock: BatchStartClock, state: State) -> Optional[Cursor]:
        """A cursor that has stepped from batch 0 to the batch before this one."""
        try:
            cursor = self._schedule.bind(ZeroClock(clock.rank), state)
        except ValueError:  # `dur` at INIT, where max_duration is not set yet
            return None
        if self._schedule.counts_only_batches:
            ahead = BatchClock(0, clock.rank)
            for ahead.batch in range(int(clock.read('ba'))):
                _, cursor = cursor.step(ahead)
            return cursor
        decision, opened = cursor.step(clock)
        while decision.active and not decision.joined:
            decision, after = opened.step(clock)
            if decision.joined:  # this window is still open
                return cursor
            cursor, opened = opened, after  # this window ended before the run resumed
        return cursor

    def _as_action(self, decision: BatchDecision, clock: BatchStartClock) -> ProfilerAction:
        assert self._cursor is not None
        save_late = self._has_unsaved and not (decision.active and decision.joined)
        if not decision.active and not save_late:
            return ProfilerAction.WARMUP if decision.warmup else ProfilerAction.SKIP
        self._has_unsaved = False
        if save_late:
            return ProfilerAction.ACTIVE_AND_SAVE
        if not self._cursor.step(clock.following())[0].joined:
            return ProfilerAction.ACTIVE_AND_SAVE
        self._has_unsaved = True
        return ProfilerAction.ACTIVE


def _is_over(clock: BatchStartClock, state: State) -> bool:
    """Whether the last batch has ended."""
    end = state.max_duration
    return end is not None and clock.read(end.unit.value) >= end.value
