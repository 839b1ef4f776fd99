"""The largest number of allocated bytes, when it was reached, and the blocks that made it up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from composer_memprof.analysis.memory.blocks.phases import batch_and_phase
from composer_memprof.analysis.memory.findings.attribution import Attribution, CategoryShare, ModuleShare, PlaceShare
from composer_memprof.analysis.memory.findings.module_totals import ModuleTotal, module_totals
from composer_memprof.analysis.snapshot.model import DeviceHistory, Snapshot


@dataclass(frozen=True)
class Peak:
    """The allocated bytes of one device after ``event`` events, where they are largest or where the training failed.

    ``categories``, ``modules`` and ``holders`` each add up to ``bytes`` exactly. See
    :class:`~composer_memprof.analysis.memory.blocks.lifetimes.Lifetimes` for the size of a block.

    Args:
        device (int): its index.
        bytes (int): allocated.
        requested (int): bytes as requested, before the allocator rounded them up.
        event (int): number of events up to it, of ``events``.
        events (int): number of events in the recording.
        time_us (int, optional): since the first event; None if the format has no times.
        batch (int, optional): the batch it is in; None if the recording has no phases.
        phase (str): the phase it is in; ``''`` if the recording has no phases.
        allocated_before (int): bytes of blocks that were allocated before the recording began.
        categories (list[CategoryShare]): by category, largest first.
        modules (list[ModuleShare]): by module, largest first.
        holders (list[PlaceShare]): by place in the code, largest first.
        module_totals (list[ModuleTotal]): by module with everything inside of it, largest first.
        outside (list[PlaceShare]): by place in the code, of the blocks that belong to no module, largest first.
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
    module_totals: list[ModuleTotal] = field(default_factory=list)
    outside: list[PlaceShare] = field(default_factory=list)


def peak_of(snapshot: Snapshot, history: DeviceHistory, attribution: Attribution, count: int) -> Peak:
    """The blocks that are allocated after ``count`` events."""
    live = attribution.blocks.allocated_after(count)
    size = attribution.blocks.size[live]
    times = history.time_us
    batch, phase = batch_and_phase(snapshot, history, count)
    modules = attribution.by_module(live)
    return Peak(
        device=history.device,
        bytes=int(size.sum()),
        requested=int(attribution.blocks.requested[live].sum()),
        event=count,
        events=len(history.action),
        time_us=int(times[count - 1] - times[0]) if count and history.has_times else None,
        batch=batch,
        phase=phase,
        allocated_before=int(size[attribution.blocks.start[live] < 0].sum()),
        categories=attribution.by_category(live),
        modules=modules,
        holders=attribution.by_place(live),
        module_totals=module_totals(modules),
        outside=attribution.by_place(live[attribution.module[live] == 0]),
    )
