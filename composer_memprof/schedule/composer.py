"""Our schedules as the ``prof_schedule`` of Composer's own profiler."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Optional

from composer.core import State
from composer.profiler import ProfilerAction

from composer_memprof.schedule.clocks import BatchClock, NextBatchClock, TrainClock, ZeroClock
from composer_memprof.schedule.cursor import BatchDecision, Cursor

if TYPE_CHECKING:
    from composer_memprof.schedule.base import Schedule


class ComposerView:
    """Steps a schedule for Composer's profiler, which asks several times for one batch, and for batch 0 at INIT.

    Keeps the action of the current batch and the state before it. If the batch count jumps (a resumed run), it steps
    again from batch 0.
    """

    def __init__(self, schedule: Schedule, state: State) -> None:
        self._schedule = schedule
        self._state: Callable[[], Optional[State]]
        try:
            self._state = weakref.ref(state)
        except TypeError:  # a stand-in for State, such as a SimpleNamespace
            self._state = lambda: state
        self._position: Optional[tuple[int, int]] = None
        self._action = ProfilerAction.SKIP
        self._cursor: Optional[Cursor] = None
        self._has_unsaved = False
        self._cursor_before: Optional[Cursor] = None
        self._had_unsaved_before = False

    def is_of(self, state: State) -> bool:
        return self._state() is state

    def action(self, state: State) -> ProfilerAction:
        """The action for the batch about to start."""
        clock = TrainClock(state)
        position = (state.timestamp.batch.value, state.timestamp.epoch.value)
        if position == self._position:
            return self._action
        if self._position is not None and position[0] == self._position[0]:
            # Composer asked at the end of the batch before; since then the epoch has advanced.
            self._cursor, self._has_unsaved = self._cursor_before, self._had_unsaved_before
        elif self._cursor is None or self._position is None or position[0] != self._position[0] + 1:
            self._has_unsaved = False
            self._cursor = self._step_from_start(clock, state)
        if self._cursor is None:
            return ProfilerAction.SKIP
        self._cursor_before, self._had_unsaved_before = self._cursor, self._has_unsaved
        decision, self._cursor = self._cursor.step(clock)
        self._position = position
        self._action = self._as_action(decision, clock)
        return self._action

    def _step_from_start(self, clock: TrainClock, state: State) -> Optional[Cursor]:
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

    def _as_action(self, decision: BatchDecision, clock: TrainClock) -> ProfilerAction:
        assert self._cursor is not None
        save_late = self._has_unsaved and not (decision.active and decision.joined)
        if not decision.active and not save_late:
            return ProfilerAction.WARMUP if decision.warmup else ProfilerAction.SKIP
        self._has_unsaved = False
        if save_late:
            return ProfilerAction.ACTIVE_AND_SAVE
        if not self._cursor.step(NextBatchClock(clock))[0].joined:
            return ProfilerAction.ACTIVE_AND_SAVE
        self._has_unsaved = True
        return ProfilerAction.ACTIVE
