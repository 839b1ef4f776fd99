"""What the allocator held of the device, how much of it lay idle, and what made it ask for more.

A CPU has no caching allocator: there nothing of this is known, and nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.attribution import Attribution
from composer_memprof.analysis.memory.frames import Place
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
class Growing:
    """A place in the code whose requests made the allocator ask the device for more, until the peak.

    ``bytes`` in ``times`` segments; ``idle`` is the most that was reserved and in no use when it asked.
    """

    bytes: int
    times: int
    idle: int
    frames: list[Frame]
    folded: int
    within: Optional[Frame] = None


@dataclass(frozen=True)
class Fragmentation:
    """At the peak: what was reserved and in no use.

    Args:
        reserved (int): bytes.
        allocated (int): bytes of it.
        idle (int): bytes reserved and not active.
        idle_segments (int, optional): bytes of it in segments without any block, which could be given back. None
            where segments grow and shrink in place, so that their layout at the peak is not known; as are the next.
        holes (int, optional): bytes of it between the blocks of segments in use.
        largest_hole (int, optional): the largest request, in bytes, that a hole or an empty segment could serve.
        growing (list[Growing]): who asked for more until then, the largest first.
    """

    reserved: int
    allocated: int
    idle: int
    idle_segments: Optional[int]
    holes: Optional[int]
    largest_hole: Optional[int]
    growing: list[Growing]


@dataclass(frozen=True)
class Pool:
    """The segments of one pool and stream at the end, in bytes."""

    pool: str
    stream: int
    segments: int
    reserved: int
    allocated: int
    active: int


def is_caching(snapshot: Snapshot, history: DeviceHistory) -> bool:
    """Whether an allocator held segments of the device, and told of them."""
    return snapshot.meta.device != 'cpu' and (
        len(history.segments) > 0 or bool(np.any(history.action >= SEGMENT_ALLOC))
    )


def reserved_over_time(history: DeviceHistory) -> np.ndarray:
    """Bytes reserved before the first event and after each: int64, one more than there are events.

    Worked back from what is reserved at the end, since a history may have lost its beginning.
    """
    more = (history.action == SEGMENT_ALLOC) | (history.action == SEGMENT_MAP)
    less = (history.action == SEGMENT_FREE) | (history.action == SEGMENT_UNMAP)
    change = np.where(more, history.size, 0) - np.where(less, history.size, 0)
    after = np.concatenate([[0], np.cumsum(change)])
    return history.reserved - after[-1] + after


def fragmentation(
    history: DeviceHistory, added: Attribution, count: int, reserved: np.ndarray, active: np.ndarray
) -> Fragmentation:
    """What was reserved and in no use after ``count`` events."""
    blocks = added.blocks
    live = blocks.active_after(count)
    empty, holes, largest = _layout(history, blocks.address[live], blocks.size[live], count)
    return Fragmentation(
        reserved=int(reserved[count]),
        allocated=int(blocks.size[blocks.allocated_after(count)].sum()),
        idle=max(int(reserved[count] - active[count]), 0),
        idle_segments=empty,
        holes=holes,
        largest_hole=largest,
        growing=_growing(history, added, reserved, active, count),
    )


def pools(history: DeviceHistory) -> list[Pool]:
    """The segments at the end, by pool and stream, the largest first."""
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
    """Idle bytes in empty segments and between blocks, and the largest piece of either; None where it is not known."""
    segments = _segments_after(history, count)
    if segments is None or not len(segments[0]):
        return None, None, None
    order = np.argsort(address)
    begin, end = address[order].astype(np.int64), (address + size.astype(np.uint64))[order].astype(np.int64)
    starts, totals = segments
    ends = starts + totals
    home = np.searchsorted(starts, begin, side='right') - 1
    inside = (home >= 0) & (end <= ends[np.maximum(home, 0)])
    if not inside.all():  # a block outside of all segments: the end and the history do not tell the same
        return None, None, None
    used = np.zeros(len(starts), dtype=np.int64)
    np.add.at(used, home, size[order])
    # A piece of idle memory lies before each block, after the last one before it, and after each segment's last.
    opens = np.concatenate([starts, end])
    closes = np.concatenate([ends, begin])
    pieces = np.sort(closes) - np.sort(opens)
    empty = used == 0
    idle = int(totals[empty].sum())
    return idle, int((totals - used)[~empty].sum()), int(max(pieces.max(), 0))


def _segments_after(history: DeviceHistory, count: int) -> Optional[tuple[np.ndarray, np.ndarray]]:
    """Addresses and sizes of the segments after ``count`` events, in order of address."""
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


def _growing(
    history: DeviceHistory, added: Attribution, reserved: np.ndarray, active: np.ndarray, count: int
) -> list[Growing]:
    events = np.flatnonzero((history.action[:count] == SEGMENT_ALLOC) | (history.action[:count] == SEGMENT_MAP))
    place = added.of_stack[history.stack[events]]
    idle = np.maximum(reserved[events] - active[events], 0)
    size = history.size[events]
    found = []
    for code in np.unique(place).tolist():
        here = place == code
        at: Place = added.places[code]
        sums = int(size[here].sum()), int(here.sum()), int(idle[here].max())
        found.append(Growing(*sums, list(at.frames), at.folded, at.within))
    return sorted(found, key=lambda growing: -growing.bytes)
