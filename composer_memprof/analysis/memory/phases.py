"""The batch and phase of each event, from the phases that the recorder noted."""

from __future__ import annotations

from typing import Optional

import numpy as np

from composer_memprof.analysis.snapshot.model import DeviceHistory, Phases
from composer_memprof.vocabulary import BETWEEN_BATCHES


def rows_at(history: DeviceHistory, phases: Phases) -> Optional[np.ndarray]:
    """For each event the row of ``phases`` that it is in, int64, -1 before the first; None without phases or times."""
    if not len(phases) or not history.has_times:
        return None
    return np.searchsorted(phases.time_us, history.time_us, side='right') - 1


def batch_and_phase(history: DeviceHistory, phases: Phases, count: int) -> tuple[Optional[int], str]:
    """The batch and phase of the ``count``-th event; None and ``''`` if they are not known."""
    rows = rows_at(history, phases)
    if rows is None or not len(rows):
        return None, ''
    row = int(rows[max(count - 1, 0)])
    return (None, '') if row < 0 else (int(phases.batch[row]), phases.names[int(phases.name[row])])


def batch_ends(history: DeviceHistory, phases: Phases) -> list[tuple[int, int]]:
    """The batches that ended within the recording, each with the number of events up to its end."""
    if not len(phases) or not history.has_times:
        return []
    begins = np.flatnonzero(np.diff(phases.batch, prepend=phases.batch[0] - 1))
    counts = np.searchsorted(history.time_us, phases.time_us[begins], side='left')
    ends = [(int(phases.batch[row]), int(count)) for row, count in zip(begins[:-1], counts[1:])]
    if phases.names[int(phases.name[-1])] == BETWEEN_BATCHES:
        ends.append((int(phases.batch[-1]), len(history.action)))
    return [end for end in ends if end[1] > 0]
