"""A function of the State, such as Composer's ``cyclic_schedule``, as a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

from composer.core import State
from composer.profiler import ProfilerAction

from composer_memprof.messages import log_error, must_be
from composer_memprof.schedule.base import Schedule, ScheduleFunction
from composer_memprof.schedule.clocks import Clock
from composer_memprof.schedule.cursor import BatchDecision, Cursor
from composer_memprof.schedule.spans import Span


class NoActionError(ValueError):
    """A schedule function returned something that is no action."""


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


def check_functions(schedule: Schedule, state: State) -> None:
    """Before the first batch: refuse a function in ``schedule`` that returns no action, such as one that makes schedules.

    Raises:
        ValueError: naming the function and what it returns.
    """
    for part in schedule.parts():
        if isinstance(part, FunctionSchedule):
            _check_function(part.function, state)


def _check_function(function: ScheduleFunction, state: State) -> None:
    try:
        action: object = function(state)
    except Exception:  # it may need a state that comes with the first batch
        log_error('the schedule function failed before the first batch')
        return
    _check_action(function, action)


def _check_action(function: ScheduleFunction, action: object) -> None:
    name = getattr(function, '__name__', repr(function))
    if callable(action):
        raise NoActionError(f'schedule={name} makes a schedule; call it: schedule={name}(...)')
    if not isinstance(action, ProfilerAction):
        raise NoActionError(str(must_be(f'what schedule={name} returns', 'a ProfilerAction of Composer', action)))


@dataclass(frozen=True)
class _FunctionCursor(Cursor):
    function: ScheduleFunction
    is_open: bool = False

    def step(self, clock: Any) -> tuple[BatchDecision, Cursor]:
        action = self.function(clock.state)
        if not isinstance(action, ProfilerAction):
            _check_action(self.function, action)
        active = action in (ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE)
        decision = BatchDecision(active, joined=active and self.is_open, warmup=action == ProfilerAction.WARMUP)
        return decision, _FunctionCursor(self.function, is_open=action == ProfilerAction.ACTIVE)
