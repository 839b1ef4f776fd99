"""Schedules that differ between ranks: ``on_ranks`` and ``on_local_ranks``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from composer.core import State
from composer.utils import dist

from composer_memprof.messages import must_be
from composer_memprof.schedule.base import Schedule
from composer_memprof.schedule.clocks import BatchClock, Clock
from composer_memprof.schedule.constant import ConstantCursor
from composer_memprof.schedule.cursor import Cursor
from composer_memprof.schedule.spans import Span


def on_ranks(*ranks: int) -> Schedule:
    """All batches on the given global ranks, none on other ranks. Meant for ``window(...) & on_ranks(0)``.

    Raises:
        ValueError: if no rank is given, or one is not a whole number from 0.
    """
    return Ranks(parse_ranks(ranks, 'on_ranks'))


def on_local_ranks(*local_ranks: int) -> Schedule:
    """All batches on the given ranks of each node, none on other ranks. Meant for ``window(...) & on_local_ranks(0)``.

    >>> from composer_memprof.schedule import on_local_ranks, window
    >>> schedule = window('3ba', skip='10ba') & on_local_ranks(0)  # on one rank of each node

    Raises:
        ValueError: if no rank is given, or one is not a whole number from 0; when the Trainer is made, if a node has no
            such rank.
    """
    return LocalRanks(parse_ranks(local_ranks, 'on_local_ranks'))


@dataclass(frozen=True)
class RankSet(Schedule):
    """All batches on some ranks."""

    ranks: frozenset[int]

    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        del state
        local_rank = clock.local_rank if isinstance(clock, BatchClock) else None
        return ConstantCursor(self.may_run_on(clock.rank, local_rank))

    def spans(self) -> Iterator[Span]:
        return iter(())

    @property
    def ends_by_itself(self) -> bool:
        return False


class Ranks(RankSet):
    """The schedule that :func:`on_ranks` returns."""

    def may_run_on(self, rank: int, local_rank: Optional[int] = None) -> bool:
        del local_rank  # unused
        return rank in self.ranks

    def named_ranks(self) -> frozenset[int]:
        return self.ranks


class LocalRanks(RankSet):
    """The schedule that :func:`on_local_ranks` returns."""

    def may_run_on(self, rank: int, local_rank: Optional[int] = None) -> bool:
        if local_rank is None:
            own = rank == dist.get_global_rank()
            local_rank = dist.get_local_rank() if own else rank % dist.get_local_world_size()
        return local_rank in self.ranks

    def named_local_ranks(self) -> frozenset[int]:
        return self.ranks


def parse_ranks(ranks: Any, name: str) -> frozenset[int]:
    """Ranks as a set.

    Raises:
        ValueError: if there are none, or one is not a whole number from 0.
    """
    values = [ranks] if isinstance(ranks, int) else list(ranks) if isinstance(ranks, (Sequence, frozenset, set)) else []
    if not values or not all(isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 for rank in values):
        raise must_be(name, 'one or more ranks, whole numbers from 0', ranks)
    return frozenset(values)
