"""The tensor in each block: a recorder has noted the addresses of tensors."""

from __future__ import annotations

import numpy as np

from composer_memprof.analysis.memory.blocks.lifetimes import Lifetimes
from composer_memprof.analysis.snapshot.model import DeviceHistory, Tensors

#: Times at which the addresses of tensors are compared with blocks. A recorder notes them at a window's start and end.
_MOST_LOOKUPS = 64


def tensors_in_blocks(history: DeviceHistory, blocks: Lifetimes, tensors: Tensors) -> np.ndarray:
    """For each block the last row of ``tensors`` whose address was in it while it was active, or -1."""
    found = np.full(len(blocks), -1, dtype=np.int32)
    if not len(tensors):
        return found
    if history.has_times:
        events_before = np.searchsorted(history.time_us, tensors.time_us, side='right')
    else:
        events_before = np.full(len(tensors), len(history.action))
    lookups = np.unique(events_before)
    if len(lookups) > _MOST_LOOKUPS:
        lookups = lookups[np.linspace(0, len(lookups) - 1, _MOST_LOOKUPS).astype(int)]
    for count in lookups.tolist():
        live = blocks.active_after(count)
        live = live[np.argsort(blocks.address[live], kind='stable')]
        if not len(live):
            continue
        rows = np.flatnonzero(events_before == count)
        place = np.searchsorted(blocks.address[live], tensors.address[rows], side='right') - 1
        block = live[np.maximum(place, 0)]
        inside = (place >= 0) & (
            tensors.address[rows] < blocks.address[block] + np.maximum(blocks.size[block], 1).astype(np.uint64)
        )
        found[block[inside]] = rows[inside]
    return found
