"""From events to blocks: when each was allocated, when freed, and what it was worth in bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from composer_memprof.analysis.snapshot.model import ALLOC, FREE_COMPLETED, DeviceHistory


@dataclass(frozen=True)
class Lifetimes:
    """The blocks of one device, a row each, in order of their addresses and times.

    A block counts as *allocated* from its ``alloc`` until its owner frees it (``free_requested``), as *active* until
    the allocator has it back (``free_completed``), which is later where another stream still uses it. These are
    torch's own ``allocated_bytes`` and ``active_bytes``. What is the case "after k events" is the case for the blocks
    with ``start < k <= freed``, or ``<= completed``.

    Args:
        address (ndarray): uint64.
        start (ndarray): int64, index of the event that allocated it; -1 if that was before the recording.
        freed (ndarray): int64, index of the event with which it was freed; the number of events if it never was.
        completed (ndarray): int64, likewise, with which the allocator had it back.
        size (ndarray): int64, bytes: as the allocator rounded it up where the snapshot's end tells, else as asked for.
        requested (ndarray): int64, bytes as asked for.
        stack (ndarray): int32, an index into the snapshot's ``stacks``; 0 where only its end was seen.
        module (ndarray): int32, an index into the snapshot's ``modules``.
        events (int): how many there are.
    """

    address: np.ndarray
    start: np.ndarray
    freed: np.ndarray
    completed: np.ndarray
    size: np.ndarray
    requested: np.ndarray
    stack: np.ndarray
    module: np.ndarray
    events: int

    def __len__(self) -> int:
        return len(self.start)

    def allocated_after(self, count: int) -> np.ndarray:
        """Which blocks are allocated after ``count`` events: indices."""
        return np.flatnonzero((self.start < count) & (self.freed >= count))

    def active_after(self, count: int) -> np.ndarray:
        """Which blocks are active after ``count`` events: indices."""
        return np.flatnonzero((self.start < count) & (self.completed >= count))

    def allocated(self) -> np.ndarray:
        """Bytes allocated before the first event and after each: int64, one more than there are events."""
        return self._over_time(self.freed)

    def active(self) -> np.ndarray:
        """Bytes active before the first event and after each: int64, one more than there are events."""
        return self._over_time(self.completed)

    def _over_time(self, end: np.ndarray) -> np.ndarray:
        change = np.zeros(self.events + 2, dtype=np.int64)
        np.add.at(change, self.start + 1, self.size)
        np.subtract.at(change, end + 1, self.size)
        return np.cumsum(change[:-1])


def lifetimes(history: DeviceHistory) -> Lifetimes:
    """Pair each allocation with its release, and with what is left at the end.

    A history may have lost its beginning: a release without an allocation, and a block at the end that no event
    tells of, were there before. An allocation at an address that was never seen freed frees what was there.
    """
    count = len(history.action)
    chosen = np.flatnonzero(history.action <= FREE_COMPLETED)
    order = chosen[np.argsort(history.address[chosen], kind='stable')]
    action, address = history.action[order], history.address[order]
    other_address = np.ones(len(order), dtype=bool)
    other_address[1:] = address[1:] != address[:-1]
    first = np.flatnonzero((action == ALLOC) | other_address)  # the row with which a block's life begins
    life = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))

    is_last = np.ones(len(first), dtype=bool)  # the last known of its address
    is_last[:-1] = other_address[first[1:]]
    next_start = np.full(len(first), count, dtype=np.int64)
    next_start[:-1][~is_last[:-1]] = order[first[1:]][~is_last[:-1]]
    seen = action[first] == ALLOC
    freed = _first_in_life(life, order, action != ALLOC, next_start)
    completed = _first_in_life(life, order, action == FREE_COMPLETED, next_start)
    start = np.where(seen, order[first], -1)
    size = history.size[order[first]]
    requested = size.copy()
    stack = np.where(seen, history.stack[order[first]], 0).astype(np.int32)
    module = np.where(seen, history.module[order[first]], 0).astype(np.int32)

    # What is left at the end says how much a block really takes, and knows blocks that no event tells of.
    blocks = history.blocks
    begins = address[first]
    last = np.flatnonzero(is_last)
    place = np.minimum(np.searchsorted(begins[last], blocks.address), max(len(last) - 1, 0))
    known = begins[last][place] == blocks.address if len(last) else np.zeros(len(blocks), dtype=bool)
    at_end = np.zeros(len(blocks), dtype=bool)
    at_end[known] = completed[last[place[known]]] == count
    same = last[place[at_end]]
    size[same], requested[same] = blocks.size[at_end], blocks.requested[at_end]
    # A format, or a history, without the completion of what is not there any more.
    gone = np.ones(len(first), dtype=bool)
    gone[same] = False
    gone &= (completed == count) & (freed < count)
    completed[gone] = freed[gone]

    more = ~at_end
    unseen = np.where(known[more], count - 1, -1)  # seen freed, and there again at the end
    return Lifetimes(
        address=np.concatenate([begins, blocks.address[more]]),
        start=np.concatenate([start, unseen]),
        freed=np.concatenate([freed, np.where(blocks.awaiting[more], unseen, count)]),
        completed=np.concatenate([completed, np.full(int(more.sum()), count)]),
        size=np.concatenate([size, blocks.size[more]]),
        requested=np.concatenate([requested, blocks.requested[more]]),
        stack=np.concatenate([stack, blocks.stack[more]]),
        module=np.concatenate([module, np.zeros(int(more.sum()), np.int32)]),
        events=count,
    )


def _first_in_life(life: np.ndarray, order: np.ndarray, wanted: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """The first of the wanted events in each life."""
    rows = np.flatnonzero(wanted)[::-1]
    found = otherwise.copy()
    found[life[rows]] = order[rows]  # of several, the assignment leaves the last: here the first
    return found
