"""Proofs about schedules before a run: the batches that two schedules share, and whether a schedule ever records.

A proof steps batch by batch until the schedules repeat. It needs schedules that count in batches only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import reduce
from typing import Optional

from composer.utils import dist

from composer_memprof.schedule.base import Schedule
from composer_memprof.schedule.clocks import BatchClock
from composer_memprof.schedule.windows import WindowSchedule

#: Nothing is proved about schedules that take more batches than this to repeat.
_MOST_BATCHES = 20_000


def first_common_batch(a: Schedule, b: Schedule, ranks: Sequence[int]) -> Optional[int]:
    """The first batch from the start of a run in which ``a`` and ``b`` both provably record or warm up.

    None if there is none, or if it can't be known before the run (a unit other than batches, or too long a cycle).
    """
    if not (a.counts_only_batches and b.counts_only_batches):
        return None
    batches = _batches_until_repeat([a, b])
    if batches > _MOST_BATCHES:
        return None
    for rank in ranks:
        clock = BatchClock(0, rank)
        cursors = a.bind(clock, None), b.bind(clock, None)
        for batch in range(batches):
            clock.batch = batch
            (p, left), (q, right) = cursors[0].step(clock), cursors[1].step(clock)
            cursors = left, right
            if (p.active or p.warmup) and (q.active or q.warmup):
                return batch
    return None


def is_never_active(schedule: Schedule) -> bool:
    """True if ``schedule`` provably records no batch on any rank."""
    places = _sample_places(schedule.named_ranks(), schedule.named_local_ranks())
    reachable = [place for place in places if schedule.may_run_on(*place)]
    if not reachable:
        return True
    if not schedule.counts_only_batches:
        return False
    batches = _batches_until_repeat([schedule])
    if batches > _MOST_BATCHES:
        return False
    return not any(_is_active_within(schedule, *place, batches) for place in reachable)


def _sample_places(named: Collection[int], named_local: Collection[int]) -> list[tuple[int, int]]:
    """Ranks with their local ranks, one of each kind that a schedule distinguishes, before the run is known.

    The nodes of the run may be larger than this process's. What it does not have is refused when the Trainer is made.
    """
    size = dist.get_local_world_size()
    unnamed, unnamed_local = max(named, default=-1) + 1, max(named_local, default=-1) + 1
    local_ranks = {*named_local, unnamed_local}
    known = size > 1 and unnamed_local <= size  # a single process shows nothing about nodes
    return [
        *((rank, local) for rank in named for local in ({rank % size} if known else local_ranks)),
        *((unnamed, local) for local in local_ranks),
    ]


def sample_ranks(named: Collection[int], named_local: Collection[int]) -> list[int]:
    """All named ranks, and for each local rank that is named one rank of the first node without a named rank.

    A last one, of that node too, stands for all ranks that are not named.
    """
    size = dist.get_local_world_size()
    node = size * (max(named, default=-1) // size + 1)
    others = [node + local for local in range(size)]
    unnamed = [rank for rank in others if rank - node not in named_local]
    return sorted({*named, *(node + local for local in named_local), *unnamed[:1]})


def _is_active_within(schedule: Schedule, rank: int, local_rank: int, batches: int) -> bool:
    clock = BatchClock(0, rank, local_rank)
    cursor = schedule.bind(clock, None)
    for batch in range(batches):
        clock.batch = batch
        decision, cursor = cursor.step(clock)
        if decision.active:
            return True
    return False


def _batches_until_repeat(schedules: Sequence[Schedule]) -> int:
    """The number of batches, from the start, that show everything the schedules ever do together."""
    windows = [part for schedule in schedules for part in schedule.parts() if isinstance(part, WindowSchedule)]
    ends = [
        w.skip.value + w.warmup.value + w.active.value + (w.every.value * max(w.repeat, 1) if w.every else 0)
        for w in windows
    ]
    cycles = [int(w.every.value) for w in windows if w.every is not None and w.repeat == 0]
    return int(max(ends, default=0)) + reduce(math.lcm, cycles, 1)
