"""Combinations of schedules: ``&``, ``|``, ``~``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

from composer.core import State

from composer_memprof.schedule.base import Operators, Schedule, ScheduleInput, set_operators
from composer_memprof.schedule.clocks import Clock
from composer_memprof.schedule.constant import Always
from composer_memprof.schedule.cursor import BatchDecision, Cursor
from composer_memprof.schedule.overlap import is_never_active
from composer_memprof.schedule.parsing import as_schedule
from composer_memprof.schedule.ranks import RankSet
from composer_memprof.schedule.spans import Span


def both(left: ScheduleInput, right: ScheduleInput) -> Schedule:
    """``left & right``.

    Raises:
        ValueError: if they provably have no batch in common.
    """
    schedule = Both(as_schedule(left), as_schedule(right))
    if is_never_active(schedule):
        raise ValueError('schedule: the two sides of & have no batch in common, so nothing would be recorded')
    return schedule


def either(left: ScheduleInput, right: ScheduleInput) -> Schedule:
    """``left | right``."""
    return Either(as_schedule(left), as_schedule(right))


@dataclass(frozen=True)
class Pair(Schedule):
    left: Schedule
    right: Schedule

    def spans(self) -> Iterator[Span]:
        yield from self.left.spans()
        yield from self.right.spans()

    def parts(self) -> Iterator[Schedule]:
        yield from self.left.parts()
        yield from self.right.parts()

    def named_ranks(self) -> frozenset[int]:
        return self.left.named_ranks() | self.right.named_ranks()

    def named_local_ranks(self) -> frozenset[int]:
        return self.left.named_local_ranks() | self.right.named_local_ranks()


@dataclass(frozen=True)
class Both(Pair):
    def without_skip(self) -> Optional[Schedule]:
        window, ranks = (self.right, self.left) if isinstance(self.left, RankSet) else (self.left, self.right)
        sooner = window.without_skip() if isinstance(ranks, RankSet) else None
        return None if sooner is None else Both(sooner, ranks)

    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        return _BothCursor(self.left.bind(clock, state), self.right.bind(clock, state))

    def may_run_on(self, rank: int, local_rank: Optional[int] = None) -> bool:
        return self.left.may_run_on(rank, local_rank) and self.right.may_run_on(rank, local_rank)

    @property
    def ends_by_itself(self) -> bool:
        return self.left.ends_by_itself or self.right.ends_by_itself


@dataclass(frozen=True)
class _BothCursor(Cursor):
    left: Cursor
    right: Cursor

    def step(self, clock: Clock) -> tuple[BatchDecision, Cursor]:
        (a, left), (b, right) = self.left.step(clock), self.right.step(clock)
        active = a.active and b.active
        ready = (a.active or a.warmup) and (b.active or b.warmup)
        return BatchDecision(active, a.joined and b.joined, ready and not active), _BothCursor(left, right)


@dataclass(frozen=True)
class Either(Pair):
    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        return _EitherCursor(self.left.bind(clock, state), self.right.bind(clock, state))

    def may_run_on(self, rank: int, local_rank: Optional[int] = None) -> bool:
        return self.left.may_run_on(rank, local_rank) or self.right.may_run_on(rank, local_rank)

    @property
    def ends_by_itself(self) -> bool:
        return self.left.ends_by_itself and self.right.ends_by_itself


@dataclass(frozen=True)
class _EitherCursor(Cursor):
    left: Cursor
    right: Cursor

    def step(self, clock: Clock) -> tuple[BatchDecision, Cursor]:
        (a, left), (b, right) = self.left.step(clock), self.right.step(clock)
        active = a.active or b.active
        decision = BatchDecision(active, a.joined or b.joined, (a.warmup or b.warmup) and not active)
        return decision, _EitherCursor(left, right)


@dataclass(frozen=True)
class Not(Schedule):
    inner: Schedule

    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        return _NotCursor(self.inner.bind(clock, state))

    def spans(self) -> Iterator[Span]:
        return self.inner.spans()

    def parts(self) -> Iterator[Schedule]:
        return self.inner.parts()

    def may_run_on(self, rank: int, local_rank: Optional[int] = None) -> bool:
        return not (isinstance(self.inner, (RankSet, Always)) and self.inner.may_run_on(rank, local_rank))

    def named_ranks(self) -> frozenset[int]:
        return self.inner.named_ranks()

    def named_local_ranks(self) -> frozenset[int]:
        return self.inner.named_local_ranks()

    @property
    def ends_by_itself(self) -> bool:
        return False


@dataclass(frozen=True)
class _NotCursor(Cursor):
    inner: Cursor
    is_open: bool = False

    def step(self, clock: Clock) -> tuple[BatchDecision, Cursor]:
        decision, inner = self.inner.step(clock)
        active = not decision.active
        return BatchDecision(active, joined=active and self.is_open), _NotCursor(inner, is_open=active)


set_operators(Operators(both, either, Not))
