"""Schedules of windows: ``window`` and ``every``, and the cursors that step through them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Optional

from composer.core import State

from composer_memprof.messages import must_be
from composer_memprof.schedule.base import Schedule
from composer_memprof.schedule.clocks import Clock
from composer_memprof.schedule.cursor import CONTINUE_WINDOW, OPEN_WINDOW, SKIP, WARM_UP, BatchDecision, Cursor
from composer_memprof.schedule.spans import Span, TimeInput, parse_span, resolve_duration


def window(
    active: TimeInput,
    skip: TimeInput = '0ba',
    warmup: TimeInput = '0ba',
    every: Optional[TimeInput] = None,
    repeat: int = 0,
) -> Schedule:
    """Windows of ``active``, the first at start + ``skip`` + ``warmup``, the n-th ``every`` times n later.

    Args:
        active (int | str | Time): length of a window, in any of ``iter ep ba sp tok sec dur``, or ``'10m'``.
        skip (int | str | Time): time before the first warm-up, from where the run started. Default: ``'0ba'``.
        warmup (int | str | Time): time before each window for a profiler to warm up. Default: ``'0ba'``.
        every (int | str | Time, optional): from one window's start to the next's. Default: ``None``, one window.
        repeat (int): number of windows; 0 repeats to the end of the run. Default: ``0``.

    Raises:
        ValueError: if a length can't be read or is negative, ``active`` or ``every`` is 0, or windows overlap.

    >>> from composer_memprof.schedule import window
    >>> schedule = window(active='3ba', skip='10ba', warmup='1ba', every='500ba', repeat=4)
    """
    spans = {'active': parse_span(active, 'active'), 'skip': parse_span(skip, 'skip')}
    spans['warmup'] = parse_span(warmup, 'warmup')
    cycle = None if every is None else parse_span(every, 'every')
    if not spans['active'].value:
        raise must_be('active', 'longer than 0', active)
    if cycle is not None and not cycle.value:
        raise must_be('every', 'longer than 0', every)
    if not isinstance(repeat, int) or isinstance(repeat, bool) or repeat < 0:
        raise must_be('repeat', 'a whole number, 0 (no limit) or more', repeat)
    if cycle is None and repeat > 1:
        raise ValueError(f'repeat={repeat} needs every, the time from one window to the next')
    if cycle is not None and cycle.unit == spans['active'].unit and cycle.value < spans['active'].value:
        raise ValueError(f'every={every!r} is shorter than active={active!r}; windows must not overlap')
    return WindowSchedule(every=cycle, repeat=repeat, **spans)


def every(interval: TimeInput, active: TimeInput = '1ba') -> Schedule:
    """A window of ``active`` every ``interval``, from the start of the run to its end.

    For a ``skip`` or a ``warmup`` use ``window(active, skip, warmup, every=interval)``.

    >>> from composer_memprof.schedule import every
    >>> schedule = every('10m')
    """
    return window(active, every=interval)


@dataclass(frozen=True)
class WindowSchedule(Schedule):
    """The schedule that :func:`window` returns; the fields are its parameters."""

    active: Span
    skip: Span
    warmup: Span
    every: Optional[Span]
    repeat: int

    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        resolved = replace(
            self,
            active=resolve_duration(self.active, state),
            skip=resolve_duration(self.skip, state),
            warmup=resolve_duration(self.warmup, state),
            every=None if self.every is None else resolve_duration(self.every, state),
        )
        due = Span(clock.read(resolved.skip.unit) + resolved.skip.value, resolved.skip.unit)
        return _BeforeWindow(resolved, number=0, due=due, first_due=None)

    def spans(self) -> Iterator[Span]:
        yield from (self.active, self.skip, self.warmup)
        if self.every is not None:
            yield self.every

    def without_skip(self) -> Optional[Schedule]:
        return replace(self, skip=Span(0, 'ba'), every=None) if self.is_last(0) else None

    def is_last(self, number: int) -> bool:
        return self.every is None or (self.repeat > 0 and number + 1 >= self.repeat)

    @property
    def warmup_in_cycle(self) -> float:
        """The length of ``warmup`` in the unit of ``every``; 0 if their units differ."""
        assert self.every is not None
        return self.warmup.value if self.warmup.unit == self.every.unit else 0

    def latest_started(self, number: int, first_due: float, now: float) -> int:
        """The last window, from ``number`` on, that starts at or before ``now`` (both in the unit of ``every``)."""
        if self.every is None:
            return number
        latest = math.floor((now - first_due - self.warmup_in_cycle) / self.every.value)
        if self.repeat > 0:
            latest = min(latest, self.repeat - 1)
        return max(latest, number)


def _position(reached: Span, unit: str, clock: Clock) -> float:
    """``reached`` in ``unit``: exact in its own unit, otherwise the clock's time, since it has just been reached."""
    return reached.value if reached.unit == unit else clock.read(unit)


@dataclass(frozen=True)
class _BeforeWindow(Cursor):
    """Before window ``number``, whose warm-up starts at ``due``; ``first_due`` is that of window 0, in ``every``'s unit."""

    schedule: WindowSchedule
    number: int
    due: Span
    first_due: Optional[float]

    def step(self, clock: Clock) -> tuple[BatchDecision, Cursor]:
        if clock.read(self.due.unit) < self.due.value:
            return SKIP, self
        schedule, first_due = self.schedule, self.first_due
        if first_due is None:
            first_due = 0.0 if schedule.every is None else _position(self.due, schedule.every.unit, clock)
        start = self.due
        if schedule.warmup.value > 0:
            unit = schedule.warmup.unit
            start = Span(_position(self.due, unit, clock) + schedule.warmup.value, unit)
        return _WarmingUp(schedule, self.number, start, first_due).step(clock)


@dataclass(frozen=True)
class _WarmingUp(Cursor):
    schedule: WindowSchedule
    number: int
    start: Span
    first_due: float

    def step(self, clock: Clock) -> tuple[BatchDecision, Cursor]:
        if clock.read(self.start.unit) < self.start.value:
            return WARM_UP, self
        schedule, start, number = self.schedule, self.start, self.number
        if schedule.every is not None:
            # A batch longer than the cycle passes the start of several windows: they are recorded as one.
            number = schedule.latest_started(self.number, self.first_due, clock.read(schedule.every.unit))
            if number > self.number:
                position = self.first_due + number * schedule.every.value + schedule.warmup_in_cycle
                start = Span(position, schedule.every.unit)
        unit = schedule.active.unit
        end = Span(_position(start, unit, clock) + schedule.active.value, unit)
        return OPEN_WINDOW, _InWindow(schedule, number, end, self.first_due)


@dataclass(frozen=True)
class _InWindow(Cursor):
    schedule: WindowSchedule
    number: int
    end: Span
    first_due: float

    def step(self, clock: Clock) -> tuple[BatchDecision, Cursor]:
        if clock.read(self.end.unit) < self.end.value:
            return CONTINUE_WINDOW, self
        if self.schedule.is_last(self.number):
            return SKIP, _AFTER_LAST_WINDOW
        assert self.schedule.every is not None
        number = self.number + 1
        due = Span(self.first_due + number * self.schedule.every.value, self.schedule.every.unit)
        return _BeforeWindow(self.schedule, number, due, self.first_due).step(clock)


class _AfterLastWindow(Cursor):
    def step(self, clock: Clock) -> tuple[BatchDecision, Cursor]:
        del clock
        return SKIP, self


_AFTER_LAST_WINDOW = _AfterLastWindow()
