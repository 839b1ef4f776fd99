"""Schedules with the same decision for every batch: ``on_ranks`` and ``ALWAYS``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

from composer.core import State

from composer_memprof.schedule.base import Schedule
from composer_memprof.schedule.clocks import Clock
from composer_memprof.schedule.cursor import CONTINUE_WINDOW, OPEN_WINDOW, SKIP, BatchDecision, Cursor
from composer_memprof.schedule.parsing import parse_ranks
from composer_memprof.schedule.spans import Span


def on_ranks(*ranks: int) -> Schedule:
    """All batches on the given global ranks, none on other ranks. Meant for ``window(...) & on_ranks(0)``.

    Raises:
        ValueError: if no rank is given, or one is not a whole number from 0.
    """
    return Ranks(parse_ranks(ranks, 'on_ranks'))


@dataclass(frozen=True)
class Ranks(Schedule):
    """What :func:`on_ranks` returns."""

    ranks: frozenset[int]

    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        del state
        return _ConstantCursor(clock.rank in self.ranks)

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
class Always(Schedule):
    """One window as long as the run."""

    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        del clock, state
        return _ConstantCursor(True)

    def spans(self) -> Iterator[Span]:
        return iter(())

    @property
    def ends_by_itself(self) -> bool:
        return False


ALWAYS: Schedule = Always()


@dataclass(frozen=True)
class _ConstantCursor(Cursor):
    active: bool
    is_open: bool = False

    def step(self, clock: Clock) -> tuple[BatchDecision, Cursor]:
        del clock
        if not self.active:
            return SKIP, self
        return (CONTINUE_WINDOW, self) if self.is_open else (OPEN_WINDOW, _ConstantCursor(True, is_open=True))
