"""All that a snapshot answers, as plain data: what ``inspect`` prints, its ``--json``, ``diff`` and the summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.attribution import Attribution, attribution
from composer_memprof.analysis.memory.categories import categories
from composer_memprof.analysis.memory.failure import OutOfMemoryEvent, failure_moment, out_of_memory_of
from composer_memprof.analysis.memory.fragmentation import (
    Fragmentation,
    Pool,
    fragmentation,
    is_caching,
    pools,
    reserved_over_time,
)
from composer_memprof.analysis.memory.growth import Growth, growth
from composer_memprof.analysis.memory.lifetimes import lifetimes
from composer_memprof.analysis.memory.peak import Peak, peak_of
from composer_memprof.analysis.snapshot.model import DeviceHistory, Meta, Snapshot


@dataclass(frozen=True)
class DeviceReport:
    """What one device's history answers, in bytes.

    Args:
        device (int): its index.
        peak (Peak): the most that was allocated.
        active_peak (int): the most that was active.
        allocated_at_start (int): allocated before the first event.
        allocated_at_end (int): allocated after the last.
        reserved_peak (int, optional): the most that was reserved; None where there is no caching allocator.
        reserved_at_end (int, optional): likewise.
        requested_at_end (int): bytes of the blocks at the end as they were asked for, against
        rounded_at_end (int): as the allocator rounded them up.
        fragmentation (Fragmentation, optional): at the peak; None where there is no caching allocator.
        pools (list[Pool]): the segments at the end.
        growth (Growth): from batch to batch, and what was left.
        at_failure (Peak, optional): what was allocated when the training failed, where the snapshot is of that: at
            the event of running out, else at the end of the recording.
    """

    device: int
    peak: Peak
    active_peak: int
    allocated_at_start: int
    allocated_at_end: int
    reserved_peak: Optional[int]
    reserved_at_end: Optional[int]
    requested_at_end: int
    rounded_at_end: int
    fragmentation: Optional[Fragmentation]
    pools: list[Pool]
    growth: Growth
    at_failure: Optional[Peak] = None


@dataclass(frozen=True)
class SnapshotReport:
    """What a snapshot answers. ``notes``: what it can not answer, and why, one sentence each."""

    meta: Meta
    error: str
    oom: Optional[OutOfMemoryEvent]
    devices: list[DeviceReport]
    notes: list[str]


def report_on(snapshot: Snapshot) -> SnapshotReport:
    """All that the snapshot answers."""
    devices, totals = [], []
    for history in snapshot.devices:
        blocks = lifetimes(history)
        added = attribution(snapshot, blocks, categories(snapshot, history, blocks))
        allocated = blocks.allocated()
        reserved = reserved_over_time(history) if is_caching(snapshot, history) else None
        devices.append(_device(snapshot, history, added, allocated, reserved))
        totals.append((allocated, reserved))
    return SnapshotReport(
        snapshot.meta, snapshot.error, out_of_memory_of(snapshot, totals), devices, notes_of(snapshot)
    )


def _device(
    snapshot: Snapshot,
    history: DeviceHistory,
    added: Attribution,
    allocated: np.ndarray,
    reserved: Optional[np.ndarray],
) -> DeviceReport:
    count = int(allocated.argmax())  # the first of several equal ones
    active = added.blocks.active()
    return DeviceReport(
        device=history.device,
        peak=peak_of(snapshot, history, added, count),
        active_peak=int(active.max()),
        allocated_at_start=int(allocated[0]),
        allocated_at_end=int(allocated[-1]),
        reserved_peak=None if reserved is None else int(reserved.max()),
        reserved_at_end=None if reserved is None else int(reserved[-1]),
        requested_at_end=int(history.blocks.requested.sum()),
        rounded_at_end=int(history.blocks.size.sum()),
        fragmentation=None if reserved is None else fragmentation(history, added, count, reserved, active),
        pools=[] if reserved is None else pools(history),
        growth=growth(snapshot, history, added),
        at_failure=_at_failure(snapshot, history, added),
    )


def _at_failure(snapshot: Snapshot, history: DeviceHistory, added: Attribution) -> Optional[Peak]:
    count = failure_moment(snapshot, history)
    return None if count is None else peak_of(snapshot, history, added, count)


def notes_of(snapshot: Snapshot) -> list[str]:
    """What the snapshot can not answer, and why."""
    notes = []
    if snapshot.devices and not len(snapshot.phases):
        notes.append('No phases of the training were recorded: categories are told by stacks and lifetimes alone.')
    if snapshot.meta.device == 'cpu':
        notes.append('A CPU has no caching allocator: nothing is known of reserved memory.')
        notes.append('On a CPU, what was allocated before the recording is seen only if it was freed within it.')
    return notes
