"""The copies of weights that autocast keeps, found by their place in a call."""

from __future__ import annotations

import numpy as np

from composer_memprof.analysis.memory.blocks.lifetimes import Lifetimes
from composer_memprof.analysis.snapshot.model import ALLOC, DeviceHistory

#: Most allocations of one call after its first copy.
_MOST = 4


def copies_of_weights(
    history: DeviceHistory, blocks: Lifetimes, dropped: np.ndarray, kept: np.ndarray, gradient: np.ndarray
) -> np.ndarray:
    """True for each block that is autocast's copy of a weight.

    A linear or convolution with a bias copies the bias, then the weight, then perhaps its input, and allocates its
    result last, all with one stack. The bias' copy is freed when autocast ends, the weight's stays for backward.

    Args:
        history (DeviceHistory): of one device.
        blocks (Lifetimes): its blocks.
        dropped (ndarray): bool, True for blocks that were freed when autocast ended.
        kept (ndarray): bool, True for blocks that were freed in backward, or not freed.
        gradient (ndarray): bool, True for blocks that are certainly gradients. They have twice as many bytes as copies.
    """
    found = np.zeros(len(blocks), dtype=bool)
    halves = set((blocks.requested[gradient] // 2).tolist())
    if not halves or not dropped.any():
        return found
    events = np.flatnonzero(history.action == ALLOC)
    stacks = history.stack[events]
    seen = np.flatnonzero(blocks.start >= 0)
    block_at = np.full(len(events), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(events, blocks.start[seen]), len(events) - 1)
    exact = events[at] == blocks.start[seen]
    block_at[at[exact]] = seen[exact]
    for first in np.flatnonzero((block_at >= 0) & dropped[block_at]).tolist():
        for number in range(first + 1, min(first + 1 + _MOST, len(events) - 1)):
            if stacks[number] != stacks[first] or stacks[number + 1] != stacks[first]:
                break  # the last one is the result
            block = block_at[number]
            if int(blocks.requested[block]) in halves:
                found[block] = kept[block] and not dropped[block]
                break
    return found
