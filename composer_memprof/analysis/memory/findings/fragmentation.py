"""Reserved memory that is not used: its size, its layout, and the code that made the allocator reserve it.

A CPU has no caching allocator, so none of this exists there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.blocks.frames import Place
from composer_memprof.analysis.memory.findings.attribution import Attribution
from composer_memprof.analysis.snapshot.model import (
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    DeviceHistory,
    Frame,
    Snapshot,
)


@dataclass(frozen=True)
class ReservingPlace:
    """A place in the code whose allocations made the allocator reserve more memory, up to the peak.

    Args:
        bytes (int): reserved for it.
        times (int): number of segments.
        idle (int): the most bytes that were reserved and not active when it allocated.
        frames (list[Frame]): as in :class:`~composer_memprof.analysis.memory.findings.attribution.PlaceShare`, and the next two.
        folded (int): number of frames left out.
        within (Frame, optional): the library's frame that allocated.
    """

    bytes: int
    times: int
    idle: int
    frames: list[Frame]
    folded: int
    within: Optional[Frame] = None


@dataclass(frozen=True)
class Fragmentation:
    """Reserved memory at the peak, in bytes.

    With expandable segments the layout at the peak is not known, and the optional values are None.

    Args:
        reserved (int): in segments.
        allocated (int): in allocated blocks.
        idle (int): reserved and not active.
        idle_segments (int, optional): idle in segments without any block, which the allocator could release.
        holes (int, optional): idle between the blocks of other segments.
        largest_hole (int, optional): the largest request that a hole or an empty segment could serve.
        growing (list[ReservingPlace]): the places that made the allocator reserve it, largest first.
    """

    reserved: int
    allocated: int
    idle: int
    idle_segments: Optional[int]
    holes: Optional[int]
    largest_hole: Optional[int]
    growing: list[ReservingPlace]


@dataclass(frozen=True)
class Pool:
    """The segments of one pool and stream at the end of the recording: their number, and sums in bytes."""

    pool: str
    stream: int
    segments: int
    reserved: int
    allocated: int
    active: int


def is_caching(snapshot: Snapshot, history: DeviceHistory) -> bool:
    """True if the snapshot has segments of a caching allocator."""
    return snapshot.meta.device != 'cpu' and (
        len(history.segments) > 0 or bool(np.any(history.action >= SEGMENT_ALLOC))
    )


def reserved_over_time(history: DeviceHistory) -> np.ndarray:
    """Bytes reserved before the first event and after each: int64, one more than there are events.

    Computed back from the bytes reserved at the end, since a history may have lost its beginning.
    """
    more = (history.action == SEGMENT_ALLOC) | (history.action == SEGMENT_MAP)
    less = (history.action == SEGMENT_FREE) | (history.action == SEGMENT_UNMAP)
    change = np.where(more, history.size, 0) - np.where(less, history.size, 0)
    after = np.concatenate([[0], np.cumsum(change)])
    return history.reserved - after[-1] + after


def fragmentation(
    history: DeviceHistory, attribution: Attribution, count: int, reserved: np.ndarray, active: np.ndarray
) -> Fragmentation:
    """The fragmentation after ``count`` events."""
    blocks = attribution.blocks
    live = blocks.active_after(count)
    empty, holes, largest = _layout(history, blocks.address[live], blocks.size[live], count)
    return Fragmentation(
        reserved=int(reserved[count]),
        allocated=int(blocks.size[blocks.allocated_after(count)].sum()),
        idle=max(int(reserved[count] - active[count]), 0),
        idle_segments=empty,
        holes=holes,
        largest_hole=largest,
        growing=_reserving_places(history, attribution, reserved, active, count),
    )


def pools(history: DeviceHistory) -> list[Pool]:
    """The segments at the end by pool and stream, largest first."""
    segments = history.segments
    sums: dict[tuple[int, int], list[int]] = {}
    columns = (segments.pool, segments.stream, segments.total_size, segments.allocated, segments.active)
    for pool, stream, *sizes in zip(*(column.tolist() for column in columns)):
        found = sums.setdefault((pool, stream), [0, 0, 0, 0])
        for place, more in enumerate((1, *sizes)):
            found[place] += more
    made = [Pool(segments.pools[pool], stream, *found) for (pool, stream), found in sums.items()]
    return sorted(made, key=lambda pool: -pool.reserved)


def _layout(
    history: DeviceHistory, address: np.ndarray, size: np.ndarray, count: int
) -> tuple[Optional[int], Optional[int], Optional[int]]:
    """Idle bytes in empty segments, idle bytes between blocks, and the largest hole of both; None if not known."""
    segments = _segments_after(history, count)
    if segments is None or not len(segments[0]):
        return None, None, None
    order = np.argsort(address)
    begin, end = address[order].astype(np.int64), (address + size.astype(np.uint64))[order].astype(np.int64)
    starts, totals = segments
    ends = starts + totals
    home = np.searchsorted(starts, begin, side='right') - 1
    inside = (home >= 0) & (end <= ends[np.maximum(home, 0)])
    if not inside.all():  # a block outside all segments: the history and the segments at the end contradict each other
        return None, None, None
    used = np.zeros(len(starts), dtype=np.int64)
    np.add.at(used, home, size[order])
    # There is a hole before each block, and one after the last block of each segment. Some have no bytes.
    opens = np.concatenate([starts, end])
    closes = np.concatenate([ends, begin])
    holes = np.sort(closes) - np.sort(opens)
    empty = used == 0
    idle = int(totals[empty].sum())
    return idle, int((totals - used)[~empty].sum()), int(max(holes.max(), 0))


def _segments_after(history: DeviceHistory, count: int) -> Optional[tuple[np.ndarray, np.ndarray]]:
    """Addresses and sizes of the segments after ``count`` events, in order of address; None with expandable segments."""
    later = history.action[count:]
    if history.segments.expandable.any() or np.any((later == SEGMENT_MAP) | (later == SEGMENT_UNMAP)):
        return None
    held = dict(zip(history.segments.address.tolist(), history.segments.total_size.tolist()))
    changes = count + np.flatnonzero((later == SEGMENT_ALLOC) | (later == SEGMENT_FREE))
    for event in changes[::-1].tolist():
        address = int(history.address[event])
        if history.action[event] == SEGMENT_ALLOC:
            held.pop(address, None)
        else:
            held[address] = int(history.size[event])
    order = sorted(held)
    return np.array(order, dtype=np.int64), np.array([held[address] for address in order], dtype=np.int64)


def _reserving_places(
    history: DeviceHistory, attribution: Attribution, reserved: np.ndarray, active: np.ndarray, count: int
) -> list[ReservingPlace]:
    events = np.flatnonzero((history.action[:count] == SEGMENT_ALLOC) | (history.action[:count] == SEGMENT_MAP))
    place = attribution.of_stack[history.stack[events]]
    idle = np.maximum(reserved[events] - active[events], 0)
    size = history.size[events]
    found = []
    for code in np.unique(place).tolist():
        here = place == code
        at: Place = attribution.places[code]
        sums = int(size[here].sum()), int(here.sum()), int(idle[here].max())
        found.append(ReservingPlace(*sums, list(at.frames), at.folded, at.within))
    return sorted(found, key=lambda place: -place.bytes)
