"""The most that each batch had allocated, beside the size of its inputs: one batch may be far larger than the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from composer_memprof.analysis.snapshot.model import DeviceHistory, Phases, Tensors
from composer_memprof.vocabulary import INPUT, TENSOR_CATEGORIES

#: The last batches of a recording that are looked at.
_LAST = 8


@dataclass(frozen=True)
class BatchPeak:
    """One batch.

    Args:
        batch (int): its number.
        bytes (int): the most that was allocated in it.
        inputs (int): bytes of its inputs; 0 if they are not known.
    """

    batch: int
    bytes: int
    inputs: int


def batch_peaks(history: DeviceHistory, phases: Phases, tensors: Tensors, allocated: np.ndarray) -> list[BatchPeak]:
    """The last batches, oldest first; empty without phases or times.

    Args:
        history (DeviceHistory): of a device.
        phases (Phases): of the recording.
        tensors (Tensors): that the recorder noted.
        allocated (ndarray): bytes after each number of events; one longer than the events.
    """
    if not len(phases) or not history.has_times:
        return []
    begins = np.flatnonzero(np.diff(phases.batch, prepend=phases.batch[0] - 1))[-_LAST:]
    times = phases.time_us[begins]
    counts = [*np.searchsorted(history.time_us, times, side='left').tolist(), len(history.action)]
    inputs = _inputs(times, tensors)
    return [
        BatchPeak(int(phases.batch[row]), int(allocated[first : last + 1].max()), inputs[number])
        for number, (row, first, last) in enumerate(zip(begins, counts, counts[1:]))
    ]


def _inputs(times_us: np.ndarray, tensors: Tensors) -> list[int]:
    """For each batch, which begins at its time, the most bytes of inputs that were seen at once."""
    is_input = tensors.category == TENSOR_CATEGORIES.index(INPUT)
    seen, which = np.unique(tensors.time_us[is_input], return_inverse=True)
    sums = np.bincount(which, weights=tensors.size[is_input], minlength=len(seen)).astype(np.int64)
    batch = np.searchsorted(times_us, seen, side='right') - 1
    return [int(sums[batch == number].max(initial=0)) for number in range(len(times_us))]
