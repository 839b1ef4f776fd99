"""What the training did at each event: forward of batch 12, say. Known where the recorder told."""

from __future__ import annotations

from typing import Optional

import numpy as np

from composer_memprof.analysis.snapshot.model import DeviceHistory, Phases


def rows_at(history: DeviceHistory, phases: Phases) -> Optional[np.ndarray]:
    """For each event the row of ``phases`` that it falls into, int64, -1 before the first; None if it is not known."""
    if not len(phases) or not history.has_times:
        return None
    return np.searchsorted(phases.time_us, history.time_us, side='right') - 1


def placed(history: DeviceHistory, phases: Phases, count: int) -> tuple[Optional[int], str]:
    """Batch and phase in which the ``count``-th event fell; None and ``''`` if that is not known."""
    rows = rows_at(history, phases)
    if rows is None or not len(rows):
        return None, ''
    row = int(rows[max(count - 1, 0)])
    return (None, '') if row < 0 else (int(phases.batch[row]), phases.names[int(phases.name[row])])


def batch_ends(history: DeviceHistory, phases: Phases) -> list[tuple[int, int]]:
    """The batches that ended within the recording, each with how many events there had been by then."""
    if not len(phases) or not history.has_times:
        return []
    begins = np.flatnonzero(np.diff(phases.batch, prepend=phases.batch[0] - 1))
    counts = np.searchsorted(history.time_us, phases.time_us[begins], side='left')
    ends = [(int(phases.batch[row]), int(count)) for row, count in zip(begins[:-1], counts[1:])]
    if phases.names[int(phases.name[-1])] == 'between batches':
        ends.append((int(phases.batch[-1]), len(history.action)))
    return [end for end in ends if end[1] > 0]
