"""The most that was allocated at once, when that was, and what it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.attribution import Attribution, CategoryShare, ModuleShare, PlaceShare
from composer_memprof.analysis.memory.lifetimes import lifetimes
from composer_memprof.analysis.memory.phases import placed
from composer_memprof.analysis.snapshot.model import DeviceHistory, Snapshot


@dataclass(frozen=True)
class Peak:
    """The most that was allocated at once on one device.

    ``holders``, ``categories`` and ``modules`` each add up to ``bytes`` exactly. What a block counts with is said in
    :class:`~composer_memprof.analysis.memory.lifetimes.Lifetimes`.

    Args:
        device (int): its index.
        bytes (int): allocated.
        requested (int): bytes of it, before they were rounded up, as far as the snapshot tells.
        event (int): how many events there were up to the peak, of ``events``.
        time_us (int, optional): from the first event; None where the format has no times.
        batch (int, optional): in which it was; None where the recorder did not tell.
        phase (str): likewise; ``''``.
        allocated_before (int): bytes of it that were allocated before the recording began.
        categories (list[CategoryShare]): the largest first, as the other two.
        modules (list[ModuleShare]): by module.
        holders (list[PlaceShare]): by place in the code.
    """

    device: int
    bytes: int
    requested: int
    event: int
    events: int
    time_us: Optional[int]
    batch: Optional[int]
    phase: str
    allocated_before: int
    categories: list[CategoryShare]
    modules: list[ModuleShare]
    holders: list[PlaceShare]


def allocated_over_time(history: DeviceHistory) -> np.ndarray:
    """Bytes allocated before the first event and after each: int64, one more than there are events."""
    return lifetimes(history).allocated()


def peak_of(snapshot: Snapshot, history: DeviceHistory, added: Attribution, count: int) -> Peak:
    """What was allocated after ``count`` events, which is the peak."""
    live = added.blocks.allocated_after(count)
    size = added.blocks.size[live]
    times = history.time_us
    batch, phase = placed(history, snapshot.phases, count)
    return Peak(
        device=history.device,
        bytes=int(size.sum()),
        requested=int(added.blocks.requested[live].sum()),
        event=count,
        events=len(history.action),
        time_us=int(times[count - 1] - times[0]) if count and history.has_times else None,
        batch=batch,
        phase=phase,
        allocated_before=int(size[added.blocks.start[live] < 0].sum()),
        categories=added.by_category(live),
        modules=added.by_module(live),
        holders=added.by_place(live),
    )
