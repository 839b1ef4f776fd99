"""When to record: windows over training time, and ``&``, ``|``, ``~`` over them.

A :class:`Schedule` says *which* batches are recorded. It is plain data: it can be compared, combined and read
from YAML. Bound to a clock (where a stage of a run has got to) it becomes a cursor that walks from batch to batch;
:class:`Windows` is the one place that drives a cursor, and what every callback of this package talks to.

A window opens at the first batch boundary at or after its start and closes at the first boundary at or after its
end, so whatever the batch size, each window is seen once, by at least one batch.
"""

from __future__ import annotations

import inspect
import math
import re
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, NamedTuple, Optional, Protocol, Union

from composer.core import State, Time, TimeUnit
from composer.profiler import ProfilerAction
from composer.utils import dist

from composer_memprof.messages import allowed_are, nearest

__all__ = ['Schedule', 'every', 'on_ranks', 'window']

STAGES = ('train', 'eval', 'predict')
UNITS = tuple(unit.value for unit in TimeUnit)
_WALL_CLOCK = re.compile(r'^(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$')
# Proving that a combination is never active walks batch by batch; beyond this many it is taken on trust.
_PROOF_LIMIT = 20_000

TimeInput = Union[int, str, Time]
ScheduleFunction = Callable[[State], ProfilerAction]
ScheduleInput = Union['Schedule', ScheduleFunction, Mapping[str, Any]]


# ---------------------------------------------------------------------------------------------------------------
# Lengths of time, and the clocks they are measured on


@dataclass(frozen=True)
class Span:
    """A length of training time: ``value`` in ``unit``, one of Composer's ``iter ep ba sp tok sec dur``."""

    value: float
    unit: str

    def __str__(self) -> str:
        return f'{self.value:g}{self.unit}'


def parse_span(value: TimeInput, name: str) -> Span:
    """Read ``'3ba'``, ``'10m'``, ``'1h30m'``, ``'0.1dur'``, a :class:`composer.core.Time`, or an int of batches.

    Raises:
        ValueError: naming ``name``, the value and what is allowed.
    """
    problem = (
        f'{name}={value!r} is not a length of training time; allowed is a number and one of {", ".join(UNITS)} '
        "(as '3ba'), or '10m', '1h30m'"
    )
    if isinstance(value, Time):
        span = Span(value.value, value.unit.value)
    elif isinstance(value, int) and not isinstance(value, bool):
        span = Span(value, TimeUnit.BATCH.value)
    elif isinstance(value, str) and (clock := _WALL_CLOCK.match(value)) and any(clock.groups()):
        hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        span = Span(hours * 3600 + minutes * 60 + seconds, TimeUnit.SECOND.value)
    elif isinstance(value, str):
        try:
            time = Time.from_timestring(value)
        except (ValueError, TypeError, OverflowError) as error:
            unit = re.sub(r'^[\d.\s+-]+', '', value)
            close = nearest(unit, UNITS) if unit not in UNITS else ''
            raise ValueError(problem + close) from error
        span = Span(time.value, time.unit.value)
    else:
        raise ValueError(problem)
    if span.value < 0 or not math.isfinite(span.value):
        raise ValueError(f'{name}={value!r} is not allowed; it must not be negative')
    return span


class Clock(Protocol):
    """Where one stage of a run has got to. ``read(unit)`` is in that unit, from the beginning of the run."""

    rank: int

    def read(self, unit: str) -> float: ...


class TrainClock:
    """The training stage's clock: Composer's own timestamp."""

    __slots__ = ('rank', 'state')

    def __init__(self, state: State) -> None:
        self.state = state
        self.rank = dist.get_global_rank()

    def read(self, unit: str) -> float:
        timestamp = self.state.timestamp
        if unit == 'ba':
            return timestamp.batch.value
        if unit == 'sec':
            return timestamp.total_wct.total_seconds()
        return timestamp.get(unit).value


class StageClock:
    """Counts evaluation or prediction over the whole run; Composer's own counters start anew with every pass.

    ``ep`` and ``iter`` count passes.
    """

    __slots__ = ('_before_pass', '_totals', 'rank', 'state')

    def __init__(self, state: State) -> None:
        self.state = state
        self.rank = dist.get_global_rank()
        self._totals: dict[str, float] = {'ep': 0, 'ba': 0, 'sp': 0, 'tok': 0, 'sec': 0}
        self._before_pass = dict(self._totals)

    def start_pass(self) -> None:
        self._before_pass = dict(self._totals)

    def end_batch(self, timestamp: Any) -> None:
        """Take in the ``timestamp`` (of the current pass) as it stands after a batch."""
        before = self._before_pass
        self._totals['ba'] = before['ba'] + timestamp.batch.value
        self._totals['sp'] = before['sp'] + timestamp.sample.value
        self._totals['tok'] = before['tok'] + timestamp.token.value
        self._totals['sec'] = before['sec'] + timestamp.total_wct.total_seconds()

    def end_pass(self) -> None:
        self._totals['ep'] += 1

    def read(self, unit: str) -> float:
        return self._totals['ep' if unit == 'iter' else unit]


@dataclass
class _BatchClock:
    """A clock that knows batches alone, to walk a schedule ahead of, or without, a run."""

    batch: int
    rank: int

    def read(self, unit: str) -> float:
        if unit != 'ba':
            raise ValueError(f'only batches can be walked ahead, not {unit}')
        return self.batch


def _resolve_duration(span: Span, state: Optional[State]) -> Span:
    """A fraction of training (``dur``) as batches where the length of an epoch is known, else in its own unit."""
    if span.unit != 'dur':
        return span
    total = None if state is None else state.max_duration
    if total is None:
        raise ValueError(f'{span} is a part of the whole training, whose max_duration is not known yet')
    length = state.dataloader_len if state is not None else None
    if total.unit == TimeUnit.EPOCH and length is not None:
        return Span(math.ceil(_exactly(span.value * total.value * int(length))), 'ba')
    return Span(_exactly(span.value * total.value), total.unit.value)


def _exactly(product: float) -> float:
    """0.07 of 100 is 7, which in floating point it is not."""
    return round(product, 6)


# ---------------------------------------------------------------------------------------------------------------
# Schedules


class Phase(NamedTuple):
    """What a cursor says of the batch about to start. ``joined``: it continues the window of the batch before."""

    active: bool
    joined: bool = False
    warmup: bool = False


_SKIP = Phase(active=False)
_WARMUP = Phase(active=False, warmup=True)
_OPENS = Phase(active=True)
_CONTINUES = Phase(active=True, joined=True)


class Cursor(ABC):
    """A schedule bound to a clock. Immutable: ``step`` returns the next cursor, so that looking ahead is free."""

    @abstractmethod
    def step(self, clock: Any) -> tuple[Phase, Cursor]:
        """What to do in the batch that starts where ``clock`` stands, and the cursor for the batch after it."""


class Schedule(ABC):
    """Which batches to record. Combine with ``&`` (both), ``|`` (either), ``~`` (neither of).

    As a callable it is a ``prof_schedule`` for Composer's own :class:`~composer.profiler.Profiler`: exact in ``ba``;
    in other units the save may fall one batch later, ``skip`` counts from 0, and only training is seen.

    >>> from composer_memprof.schedule import on_ranks, window
    >>> schedule = window(active='3ba', skip='1ba', warmup='1ba') & on_ranks(0)
    """

    _memo: Any = None

    @abstractmethod
    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        """A cursor that counts from where ``clock`` stands now. ``state`` gives the length of training for ``dur``."""

    @abstractmethod
    def spans(self) -> Iterator[Span]:
        """Every length of time in it."""

    def may_run_on(self, rank: int) -> bool:
        """Whether ``rank`` can ever be active."""
        del rank  # every rank, unless a subclass narrows it
        return True

    def named_ranks(self) -> frozenset[int]:
        """The ranks that are named in it."""
        return frozenset()

    @property
    def ends_by_itself(self) -> bool:
        """Whether its windows have an end of their own, so that a run that ends inside one has cut it short."""
        return True

    def without_skip(self) -> Optional[Schedule]:
        """The same window from now on, where there is but one; otherwise None."""
        return None

    @property
    def counts_only_batches(self) -> bool:
        return all(span.unit == 'ba' for span in self.spans())

    def __and__(self, other: ScheduleInput) -> Schedule:
        return _refuse_never_active(_Both(self, as_schedule(other)))

    def __rand__(self, other: ScheduleInput) -> Schedule:
        return as_schedule(other) & self

    def __or__(self, other: ScheduleInput) -> Schedule:
        return _Either(self, as_schedule(other))

    def __ror__(self, other: ScheduleInput) -> Schedule:
        return as_schedule(other) | self

    def __invert__(self) -> Schedule:
        return _Not(self)

    def __call__(self, state: State) -> ProfilerAction:
        """The action of the batch about to start, as Composer's profiler asks for it (often, of the same batch)."""
        memo = self._memo
        if memo is None or not memo.is_of(state):
            memo = _ComposerSchedule(self, state)
            object.__setattr__(self, '_memo', memo)
        return memo.action(state)


@dataclass(frozen=True)
class _Window(Schedule):
    active: Span
    skip: Span
    warmup: Span
    every: Optional[Span]
    repeat: int

    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        resolved = replace(
            self,
            active=_resolve_duration(self.active, state),
            skip=_resolve_duration(self.skip, state),
            warmup=_resolve_duration(self.warmup, state),
            every=None if self.every is None else _resolve_duration(self.every, state),
        )
        due = Span(clock.read(resolved.skip.unit) + resolved.skip.value, resolved.skip.unit)
        return _Waiting(resolved, number=0, due=due, first=None)

    def spans(self) -> Iterator[Span]:
        yield from (self.active, self.skip, self.warmup)
        if self.every is not None:
            yield self.every

    def without_skip(self) -> Optional[Schedule]:
        return replace(self, skip=Span(0, 'ba'), every=None) if self.is_last(0) else None

    def is_last(self, number: int) -> bool:
        return self.every is None or (self.repeat > 0 and number + 1 >= self.repeat)

    @property
    def lead(self) -> float:
        """How long after a window is due it starts, in the unit of ``every``; 0 where it can't be said in it."""
        assert self.every is not None
        return self.warmup.value if self.warmup.unit == self.every.unit else 0

    def latest_due(self, number: int, first: float, now: float) -> int:
        """The last window, from ``number`` on, whose start is not after ``now`` (both in the unit of ``every``)."""
        if self.every is None:
            return number
        latest = math.floor((now - first - self.lead) / self.every.value)
        if self.repeat > 0:
            latest = min(latest, self.repeat - 1)
        return max(latest, number)


def _anchor(reached: Span, unit: str, clock: Clock) -> float:
    """Where, in ``unit``, the next phase counts from: the point itself in its own unit, else where the clock stands."""
    return reached.value if reached.unit == unit else clock.read(unit)


@dataclass(frozen=True)
class _Waiting(Cursor):
    """Before window ``number``, which is due (warm-up included) at ``due``; ``first`` is where window 0 was due."""

    plan: _Window
    number: int
    due: Span
    first: Optional[float]

    def step(self, clock: Clock) -> tuple[Phase, Cursor]:
        if clock.read(self.due.unit) < self.due.value:
            return _SKIP, self
        plan, first = self.plan, self.first
        if first is None:
            first = 0.0 if plan.every is None else _anchor(self.due, plan.every.unit, clock)
        start = self.due
        if plan.warmup.value > 0:
            start = Span(_anchor(self.due, plan.warmup.unit, clock) + plan.warmup.value, plan.warmup.unit)
        return _WarmingUp(plan, self.number, start, first).step(clock)


@dataclass(frozen=True)
class _WarmingUp(Cursor):
    plan: _Window
    number: int
    start: Span
    first: float

    def step(self, clock: Clock) -> tuple[Phase, Cursor]:
        if clock.read(self.start.unit) < self.start.value:
            return _WARMUP, self
        plan, start, number = self.plan, self.start, self.number
        if plan.every is not None:
            # A batch longer than the cycle brings several windows at once: they are recorded as one.
            number = plan.latest_due(self.number, self.first, clock.read(plan.every.unit))
            if number > self.number:
                start = Span(self.first + number * plan.every.value + plan.lead, plan.every.unit)
        end = Span(_anchor(start, plan.active.unit, clock) + plan.active.value, plan.active.unit)
        return _OPENS, _Open(plan, number, end, self.first)


@dataclass(frozen=True)
class _Open(Cursor):
    plan: _Window
    number: int
    end: Span
    first: float

    def step(self, clock: Clock) -> tuple[Phase, Cursor]:
        if clock.read(self.end.unit) < self.end.value:
            return _CONTINUES, self
        if self.plan.is_last(self.number):
            return _SKIP, _DONE
        assert self.plan.every is not None
        number = self.number + 1
        due = Span(self.first + number * self.plan.every.value, self.plan.every.unit)
        return _Waiting(self.plan, number, due, self.first).step(clock)


class _Done(Cursor):
    def step(self, clock: Clock) -> tuple[Phase, Cursor]:
        del clock
        return _SKIP, self


_DONE = _Done()


@dataclass(frozen=True)
class _Constant(Cursor):
    active: bool
    running: bool = False

    def step(self, clock: Clock) -> tuple[Phase, Cursor]:
        del clock
        if not self.active:
            return _SKIP, self
        return (_CONTINUES, self) if self.running else (_OPENS, _Constant(True, running=True))


@dataclass(frozen=True)
class _Ranks(Schedule):
    ranks: frozenset[int]

    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        del state
        return _Constant(clock.rank in self.ranks)

    def spans(self) -> Iterator[Span]:
        return iter(())

    def may_run_on(self, rank: int) -> bool:
        return rank in self.ranks

    def named_ranks(self) -> frozenset[int]:
        return self.ranks

    @property
    def ends_by_itself(self) -> bool:
        return False


@dataclass(frozen=True)
class _Always(Schedule):
    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        del clock, state
        return _Constant(True)

    def spans(self) -> Iterator[Span]:
        return iter(())

    @property
    def ends_by_itself(self) -> bool:
        return False


#: One window that lasts as long as the run.
ALWAYS: Schedule = _Always()


@dataclass(frozen=True)
class _Function(Schedule):
    """Composer's kind of schedule, a function of the State, as one of ours."""

    function: ScheduleFunction

    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        del clock, state
        return _FunctionCursor(self.function)

    def spans(self) -> Iterator[Span]:
        yield Span(0, 'function')  # asks the State itself: nothing can be said ahead of the run

    def __call__(self, state: State) -> ProfilerAction:
        return self.function(state)


@dataclass(frozen=True)
class _FunctionCursor(Cursor):
    function: ScheduleFunction
    running: bool = False

    def step(self, clock: Any) -> tuple[Phase, Cursor]:
        action = self.function(clock.state)
        if not isinstance(action, ProfilerAction):
            raise TypeError(f'the schedule function returned {action!r}; it must return a composer ProfilerAction')
        active = action in (ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE)
        phase = Phase(active, joined=active and self.running, warmup=action == ProfilerAction.WARMUP)
        return phase, _FunctionCursor(self.function, running=action == ProfilerAction.ACTIVE)


@dataclass(frozen=True)
class _Pair(Schedule):
    left: Schedule
    right: Schedule

    def spans(self) -> Iterator[Span]:
        yield from self.left.spans()
        yield from self.right.spans()

    def named_ranks(self) -> frozenset[int]:
        return self.left.named_ranks() | self.right.named_ranks()


@dataclass(frozen=True)
class _Both(_Pair):
    def without_skip(self) -> Optional[Schedule]:
        window, ranks = (self.right, self.left) if isinstance(self.left, _Ranks) else (self.left, self.right)
        again = window.without_skip() if isinstance(ranks, _Ranks) else None
        return None if again is None else _Both(again, ranks)

    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        return _BothCursor(self.left.bind(clock, state), self.right.bind(clock, state))

    def may_run_on(self, rank: int) -> bool:
        return self.left.may_run_on(rank) and self.right.may_run_on(rank)

    @property
    def ends_by_itself(self) -> bool:
        return self.left.ends_by_itself or self.right.ends_by_itself


@dataclass(frozen=True)
class _BothCursor(Cursor):
    left: Cursor
    right: Cursor

    def step(self, clock: Clock) -> tuple[Phase, Cursor]:
        (a, left), (b, right) = self.left.step(clock), self.right.step(clock)
        active = a.active and b.active
        ready = (a.active or a.warmup) and (b.active or b.warmup)
        return Phase(active, a.joined and b.joined, ready and not active), _BothCursor(left, right)


@dataclass(frozen=True)
class _Either(_Pair):
    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        return _EitherCursor(self.left.bind(clock, state), self.right.bind(clock, state))

    def may_run_on(self, rank: int) -> bool:
        return self.left.may_run_on(rank) or self.right.may_run_on(rank)

    @property
    def ends_by_itself(self) -> bool:
        return self.left.ends_by_itself and self.right.ends_by_itself


@dataclass(frozen=True)
class _EitherCursor(Cursor):
    left: Cursor
    right: Cursor

    def step(self, clock: Clock) -> tuple[Phase, Cursor]:
        (a, left), (b, right) = self.left.step(clock), self.right.step(clock)
        active = a.active or b.active
        phase = Phase(active, a.joined or b.joined, (a.warmup or b.warmup) and not active)
        return phase, _EitherCursor(left, right)


@dataclass(frozen=True)
class _Not(Schedule):
    inner: Schedule

    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        return _NotCursor(self.inner.bind(clock, state))

    def spans(self) -> Iterator[Span]:
        return self.inner.spans()

    def may_run_on(self, rank: int) -> bool:
        return not (isinstance(self.inner, (_Ranks, _Always)) and self.inner.may_run_on(rank))

    def named_ranks(self) -> frozenset[int]:
        return self.inner.named_ranks()

    @property
    def ends_by_itself(self) -> bool:
        return False


@dataclass(frozen=True)
class _NotCursor(Cursor):
    inner: Cursor
    running: bool = False

    def step(self, clock: Clock) -> tuple[Phase, Cursor]:
        phase, inner = self.inner.step(clock)
        active = not phase.active
        return Phase(active, joined=active and self.running), _NotCursor(inner, running=active)


# ---------------------------------------------------------------------------------------------------------------
# Proofs about schedules that count in batches


def _leaves(schedule: Schedule) -> Iterator[Schedule]:
    if isinstance(schedule, _Pair):
        yield from _leaves(schedule.left)
        yield from _leaves(schedule.right)
    elif isinstance(schedule, _Not):
        yield from _leaves(schedule.inner)
    else:
        yield schedule


def _horizon(schedules: Sequence[Schedule]) -> int:
    """After this many batches from the start, schedules that count in batches only repeat themselves."""
    windows = [leaf for schedule in schedules for leaf in _leaves(schedule) if isinstance(leaf, _Window)]
    ends = [
        w.skip.value + w.warmup.value + w.active.value + (w.every.value * max(w.repeat, 1) if w.every else 0)
        for w in windows
    ]
    cycles = [int(w.every.value) for w in windows if w.every is not None and w.repeat == 0]
    return int(max(ends, default=0)) + reduce(math.lcm, cycles, 1)


def first_common_batch(a: Schedule, b: Schedule, ranks: Sequence[int]) -> Optional[int]:
    """The first batch, from the start of a run, in which ``a`` and ``b`` both provably record or warm up.

    None where there is none, or where it can't be known ahead (another unit than batches, or too far a cycle).
    """
    if not (a.counts_only_batches and b.counts_only_batches):
        return None
    horizon = _horizon([a, b])
    if horizon > _PROOF_LIMIT:
        return None
    for rank in ranks:
        clock = _BatchClock(0, rank)
        cursors = a.bind(clock, None), b.bind(clock, None)
        for batch in range(horizon):
            clock.batch = batch
            (p, left), (q, right) = cursors[0].step(clock), cursors[1].step(clock)
            cursors = left, right
            if (p.active or p.warmup) and (q.active or q.warmup):
                return batch
    return None


def _refuse_never_active(schedule: _Both) -> Schedule:
    named = schedule.named_ranks()
    ranks = [*sorted(named), max(named, default=-1) + 1]
    reachable = [rank for rank in ranks if schedule.may_run_on(rank)]
    never = not reachable
    if not never and schedule.counts_only_batches:
        horizon = _horizon([schedule])
        if horizon <= _PROOF_LIMIT:
            never = not any(_is_ever_active(schedule, rank, horizon) for rank in reachable)
    if never:
        raise ValueError('schedule: the two sides of & have no batch in common, so nothing would ever be recorded')
    return schedule


def _is_ever_active(schedule: Schedule, rank: int, horizon: int) -> bool:
    clock = _BatchClock(0, rank)
    cursor = schedule.bind(clock, None)
    for batch in range(horizon):
        clock.batch = batch
        phase, cursor = cursor.step(clock)
        if phase.active:
            return True
    return False


# ---------------------------------------------------------------------------------------------------------------
# Driving a schedule


class Windows:
    """A schedule at work on one stage of one run, asked before and after each batch.

    Args:
        schedule (Schedule): which batches.
        clock (Clock): where the stage has got to; ``skip`` counts from where it stands now.
        state (State, optional): gives the length of training, which ``dur`` is a part of.
    """

    def __init__(self, schedule: Schedule, clock: Clock, state: Optional[State]) -> None:
        self.schedule = schedule
        self.clock = clock
        self.opened = 0
        self._cursor = schedule.bind(clock, state)
        self._lookahead = 0
        if schedule.counts_only_batches and isinstance(schedule, (_Pair, _Not)):
            leaves = [leaf for leaf in _leaves(schedule) if isinstance(leaf, _Window)]
            self._lookahead = int(max((leaf.warmup.value for leaf in leaves), default=0))

    def before_batch(self) -> Phase:
        """What to do in the batch about to start."""
        phase, self._cursor = self._cursor.step(self.clock)
        if phase.active and not phase.joined:
            self.opened += 1
        if self._lookahead and not phase.active:
            return _WARMUP if self._opens_soon() else _SKIP
        return phase

    def is_over(self) -> bool:
        """After a batch, or an epoch: whether the open window ends here."""
        return not self._cursor.step(self.clock)[0].joined

    def _opens_soon(self) -> bool:
        """Of a combination, the warm-up is whatever comes shortly before the batches that are active in the end."""
        clock = _BatchClock(int(self.clock.read('ba')), self.clock.rank)
        cursor = self._cursor
        for _ in range(self._lookahead):
            clock.batch += 1
            phase, cursor = cursor.step(clock)
            if phase.active:
                return True
        return False


class _ComposerSchedule:
    """One of our schedules walked for Composer's profiler, which asks of one batch many times, and of batch 0 at INIT.

    Every answer but the last is kept, and a jump in the batch count (a resumed run) starts over at the new place.
    """

    def __init__(self, schedule: Schedule, state: State) -> None:
        self._schedule = schedule
        self._state: Callable[[], Optional[State]]
        try:
            self._state = weakref.ref(state)
        except TypeError:  # a made-up State
            self._state = lambda: state
        self._place: Optional[tuple[int, int]] = None
        self._answer = ProfilerAction.SKIP
        self._before: Optional[Cursor] = None
        self._cursor: Optional[Cursor] = None
        self._was_unsaved = False
        self._unsaved = False

    def is_of(self, state: State) -> bool:
        return self._state() is state

    def action(self, state: State) -> ProfilerAction:
        clock = TrainClock(state)
        place = (state.timestamp.batch.value, state.timestamp.epoch.value)
        if place == self._place:
            return self._answer
        if self._place is not None and place[0] == self._place[0]:
            # The epoch has advanced since this batch was asked for, at the end of the one before.
            self._cursor, self._unsaved = self._before, self._was_unsaved
        elif self._cursor is None or self._place is None or place[0] != self._place[0] + 1:
            self._unsaved = False
            self._cursor = self._from_the_start(clock, state)
        if self._cursor is None:
            return ProfilerAction.SKIP
        self._before, self._was_unsaved = self._cursor, self._unsaved
        phase, self._cursor = self._cursor.step(clock)
        self._place = place
        self._answer = self._as_action(phase, clock)
        return self._answer

    def _from_the_start(self, clock: TrainClock, state: State) -> Optional[Cursor]:
        """A cursor that has walked from batch 0 to the batch before this one."""
        try:
            cursor = self._schedule.bind(_Zero(clock.rank), state)
        except ValueError:  # `dur`, while max_duration is not set: at INIT
            return None
        if self._schedule.counts_only_batches:
            walked = _BatchClock(0, clock.rank)
            for walked.batch in range(int(clock.read('ba'))):
                _, cursor = cursor.step(walked)
            return cursor
        phase, opened = cursor.step(clock)
        while phase.active and not phase.joined:
            phase, after = opened.step(clock)
            if phase.joined:  # it is open here
                return cursor
            cursor, opened = opened, after  # it was over before the run got here
        return cursor

    def _as_action(self, phase: Phase, clock: TrainClock) -> ProfilerAction:
        assert self._cursor is not None
        late = self._unsaved and not (phase.active and phase.joined)
        if not phase.active and not late:
            return ProfilerAction.WARMUP if phase.warmup else ProfilerAction.SKIP
        self._unsaved = False
        if late:
            return ProfilerAction.ACTIVE_AND_SAVE
        if not self._cursor.step(_NextBatch(clock))[0].joined:
            return ProfilerAction.ACTIVE_AND_SAVE
        self._unsaved = True
        return ProfilerAction.ACTIVE


@dataclass
class _Zero:
    """The clock at the very beginning of a run."""

    rank: int

    def read(self, unit: str) -> float:
        del unit
        return 0


class _NextBatch:
    """A clock one batch further on; how many samples, tokens or seconds that will be is not known yet."""

    def __init__(self, clock: TrainClock) -> None:
        self.rank = clock.rank
        self.state = clock.state
        self._clock = clock

    def read(self, unit: str) -> float:
        return self._clock.read(unit) + (unit == 'ba')


# ---------------------------------------------------------------------------------------------------------------
# Making schedules


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
        skip (int | str | Time): not recorded at the start, counted from where the run started. Default: ``'0ba'``.
        warmup (int | str | Time): before each window, to let a profiler settle. Default: ``'0ba'``.
        every (int | str | Time, optional): from one window's start to the next's. Default: ``None``, one window.
        repeat (int): how many windows; 0 goes on to the end of the run. Default: ``0``.

    Raises:
        ValueError: if a length can't be read or is negative, ``active`` or ``every`` is 0, or windows overlap.

    >>> from composer_memprof.schedule import window
    >>> schedule = window(active='3ba', skip='10ba', warmup='1ba', every='500ba', repeat=4)
    """
    spans = {'active': parse_span(active, 'active'), 'skip': parse_span(skip, 'skip')}
    spans['warmup'] = parse_span(warmup, 'warmup')
    cycle = None if every is None else parse_span(every, 'every')
    if not spans['active'].value:
        raise ValueError(f'active={active!r} is not allowed; a window must have a length above 0')
    if cycle is not None and not cycle.value:
        raise ValueError(f'every={every!r} is not allowed; windows must be apart by more than 0')
    if not isinstance(repeat, int) or isinstance(repeat, bool) or repeat < 0:
        raise ValueError(f'repeat={repeat!r} is not allowed; it must be a whole number, 0 (to the end) or more')
    if cycle is None and repeat > 1:
        raise ValueError(f'repeat={repeat} needs every, the time from one window to the next')
    if cycle is not None and cycle.unit == spans['active'].unit and cycle.value < spans['active'].value:
        raise ValueError(f'every={every!r} is shorter than active={active!r}, so that windows would overlap')
    return _Window(every=cycle, repeat=repeat, **spans)


def every(interval: TimeInput, active: TimeInput = '1ba') -> Schedule:
    """A window of ``active`` (one batch unless told otherwise) every ``interval``, from the start of the run to its end.

    With a ``skip`` or a ``warmup``, it is ``window(active, skip, warmup, every=interval)``.

    >>> from composer_memprof.schedule import every
    >>> schedule = every('10m')
    """
    return window(active, every=interval)


def on_ranks(*ranks: int) -> Schedule:
    """All batches of the given global ranks, none of the others'. Meant for ``window(...) & on_ranks(0)``."""
    return _Ranks(parse_ranks(ranks, 'on_ranks'))


def parse_ranks(ranks: Any, name: str) -> frozenset[int]:
    """Ranks as a set.

    Raises:
        ValueError: if they are empty, or not whole numbers from 0.
    """
    values = [ranks] if isinstance(ranks, int) else list(ranks) if isinstance(ranks, (Sequence, frozenset, set)) else []
    if not values or not all(isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 for rank in values):
        raise ValueError(f'{name}={ranks!r} is not allowed; give one or more ranks, whole numbers from 0')
    return frozenset(values)


def parse_stages(stages: Any, name: str) -> frozenset[str]:
    """Stages as a set.

    Raises:
        ValueError: if they are empty, or not among ``train``, ``eval`` and ``predict``.
    """
    if not isinstance(stages, (str, Sequence, set, frozenset)):
        raise ValueError(f'{name}={stages!r} is not allowed; it is a list of {", ".join(STAGES)}')
    values = [stages] if isinstance(stages, str) else list(stages)
    for stage in values:
        if stage not in STAGES:
            raise ValueError(f'{name}={stage!r} is unknown; {allowed_are(STAGES, stage)}')
    if not values:
        raise ValueError(f'{name}={stages!r} is empty; allowed are {", ".join(STAGES)}')
    return frozenset(values)


def as_schedule(value: ScheduleInput) -> Schedule:
    """A schedule from any form that one is given in: ours, a mapping, or a function of the State."""
    return parse_schedule(value).schedule


@dataclass(frozen=True)
class ParsedSchedule:
    """A schedule with what a mapping may say beside it. None: not said there."""

    schedule: Schedule
    ranks: Optional[frozenset[int]] = None
    stages: Optional[frozenset[str]] = None


def parse_schedule(value: ScheduleInput, name: str = 'schedule') -> ParsedSchedule:
    """Read ``{skip: 1ba, warmup: 1ba, active: 3ba, every: 500ba, repeat: 0, ranks: [0], stages: [train]}``.

    Raises:
        ValueError: naming the key, the value and what is allowed.
    """
    if isinstance(value, Schedule):
        return ParsedSchedule(value)
    if isinstance(value, Mapping):
        return _parse_mapping(value, name)
    if callable(value):
        return ParsedSchedule(_Function(value))
    raise ValueError(f'{name}={value!r} is not a schedule; give window(...), a mapping, or a function of the State')


def _parse_mapping(mapping: Mapping[str, Any], name: str) -> ParsedSchedule:
    lengths = tuple(inspect.signature(window).parameters)
    allowed = (*lengths, 'ranks', 'stages')
    for key in mapping:
        if key not in allowed:
            raise ValueError(f'{name}.{key} is unknown; {allowed_are(allowed, key)}')
    given = {key: mapping[key] for key in lengths if mapping.get(key) is not None}
    if 'active' not in given and 'every' not in given:
        raise ValueError(f'{name} needs active, the length of a window; allowed are {", ".join(allowed)}')
    try:
        schedule = window(**{'active': '1ba', **given})
    except ValueError as error:
        raise ValueError(f'{name}.{error}') from error
    ranks, stages = mapping.get('ranks'), mapping.get('stages')
    return ParsedSchedule(
        schedule,
        None if ranks is None else parse_ranks(ranks, f'{name}.ranks'),
        None if stages is None else parse_stages(stages, f'{name}.stages'),
    )


def check_units(schedule: Schedule, stages: frozenset[str]) -> None:
    """Refuse a part of training (``dur``) as the measure of a stage that has no known length.

    Raises:
        ValueError: naming the length and the stage.
    """
    for span in schedule.spans():
        if span.unit == 'dur' and stages != {'train'}:
            others = ', '.join(sorted(stages - {'train'}))
            raise ValueError(f'schedule: {span} is a part of training and can measure no {others}; use ba, sp or 10m')


assert {field.name for field in fields(_Window)} == set(inspect.signature(window).parameters)
