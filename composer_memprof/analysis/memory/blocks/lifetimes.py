"""Blocks from events: the events that allocated and freed each block, and its size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from composer_memprof.analysis.snapshot.model import ALLOC, FREE_COMPLETED, FREE_REQUESTED, DeviceHistory
from composer_memprof.analysis.snapshot.ordering import stable_order


@dataclass(frozen=True)
class Lifetimes:
    """The blocks of one device, one row each, in order of address and time.

    A block is *allocated* from its ``alloc`` until its owner frees it (``free_requested``). It is *active* until the
    allocator can reuse it (``free_completed``), which is later if another stream still uses it. These are torch's own
    ``allocated_bytes`` and ``active_bytes``. After ``k`` events the blocks with ``start < k <= freed`` are allocated,
    those with ``start < k <= completed`` active.

    Args:
        address (ndarray): uint64.
        start (ndarray): int64, index of the event that allocated it; -1 if that was before the recording.
        freed (ndarray): int64, index of the event that freed it; ``events`` if it was not freed, -1 if that was before
            the recording.
        completed (ndarray): int64, index of the event after which the allocator could reuse it; ``events`` if none.
        size (ndarray): int64, bytes: rounded up by the allocator if the snapshot's end has the block, else as requested.
        requested (ndarray): int64, bytes as requested.
        stack (ndarray): int32, index into the snapshot's ``stacks``; 0 if its ``alloc`` is not in the history.
        module (ndarray): int32, index into the snapshot's ``modules``.
        events (int): number of events.
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
        """Indices of the blocks that are allocated after ``count`` events."""
        return np.flatnonzero((self.start < count) & (self.freed >= count))

    def active_after(self, count: int) -> np.ndarray:
        """Indices of the blocks that are active after ``count`` events."""
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
    """Pair each allocation with its free, and with the block that is left at the end.

    A history may have lost its beginning. So a free without an allocation, and a block at the end without any event,
    belong to blocks that existed before. If the first event of a block is ``free_completed``, its owner freed it before
    the recording. An allocation at an address that was not freed ends the block there.
    """
    count = len(history.action)
    chosen = np.flatnonzero(history.action <= FREE_COMPLETED)
    order = chosen[stable_order(history.address[chosen])]
    action, address = history.action[order], history.address[order]
    other_address = np.ones(len(order), dtype=bool)
    other_address[1:] = address[1:] != address[:-1]
    first = np.flatnonzero((action == ALLOC) | other_address)  # the row where a block's life begins
    life = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))

    is_last = np.ones(len(first), dtype=bool)  # the last life at its address
    is_last[:-1] = other_address[first[1:]]
    next_start = np.full(len(first), count, dtype=np.int64)
    next_start[:-1][~is_last[:-1]] = order[first[1:]][~is_last[:-1]]
    seen = action[first] == ALLOC
    freed = _first_in_life(life, order, action != ALLOC, next_start)
    completed = _first_in_life(life, order, action == FREE_COMPLETED, next_start)
    start = np.where(seen, order[first], -1)
    if np.any(action == FREE_REQUESTED):  # other formats have only free_completed
        freed[action[first] == FREE_COMPLETED] = -1
    size = history.size[order[first]]
    requested = size.copy()
    stack = np.where(seen, history.stack[order[first]], 0).astype(np.int32)
    module = np.where(seen, history.module[order[first]], 0).astype(np.int32)

    # The blocks at the end have rounded sizes. Some blocks have no event.
    blocks = history.blocks
    begins = address[first]
    last = np.flatnonzero(is_last)
    place = np.minimum(np.searchsorted(begins[last], blocks.address), max(len(last) - 1, 0))
    known = begins[last][place] == blocks.address if len(last) else np.zeros(len(blocks), dtype=bool)
    at_end = np.zeros(len(blocks), dtype=bool)
    at_end[known] = completed[last[place[known]]] == count
    same = last[place[at_end]]
    size[same], requested[same] = blocks.size[at_end], blocks.requested[at_end]
    # Freed without an event, because the recording was stopped before.
    freed[same] = np.where(blocks.awaiting[at_end] & (freed[same] == count), count - 1, freed[same])
    # Freed blocks without a free_completed event: some formats have none, and a history may have lost it.
    gone = np.ones(len(first), dtype=bool)
    gone[same] = False
    gone &= (completed == count) & (freed < count)
    completed[gone] = freed[gone]

    more = ~at_end
    unseen = np.where(known[more], count - 1, -1)  # freed, and there again at the end
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
    """The first of the wanted events in each life, or ``otherwise``."""
    rows = np.flatnonzero(wanted)[::-1]
    found = otherwise.copy()
    found[life[rows]] = order[rows]  # of several values, NumPy keeps the last one assigned, here the first event
    return found
