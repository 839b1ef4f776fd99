"""A function of the State, such as Composer's ``cyclic_schedule``, as a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

from composer.core import State
from composer.profiler import ProfilerAction

from composer_memprof.schedule.base import Schedule, ScheduleFunction
from composer_memprof.schedule.clocks import Clock
from composer_memprof.schedule.cursor import BatchDecision, Cursor
from composer_memprof.schedule.spans import Span


@dataclass(frozen=True)
class FunctionSchedule(Schedule):
    function: ScheduleFunction

    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        del clock, state
        return _FunctionCursor(self.function)

    def spans(self) -> Iterator[Span]:
        yield Span(0, 'function')  # a unit of its own: its windows are not known before the run

    def __call__(self, state: State) -> ProfilerAction:
        return self.function(state)


@dataclass(frozen=True)
class _FunctionCursor(Cursor):
    function: ScheduleFunction
    is_open: bool = False

    def step(self, clock: Any) -> tuple[BatchDecision, Cursor]:
        action = self.function(clock.state)
        if not isinstance(action, ProfilerAction):
            raise TypeError(f'the schedule function must return a composer ProfilerAction, not {action!r}')
        active = action in (ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE)
        decision = BatchDecision(active, joined=active and self.is_open, warmup=action == ProfilerAction.WARMUP)
        return decision, _FunctionCursor(self.function, is_open=action == ProfilerAction.ACTIVE)
