"""Bytes by category over time: what a chart of a whole recording shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.blocks.lifetimes import lifetimes
from composer_memprof.analysis.memory.categories.categories import CATEGORIES, categories
from composer_memprof.analysis.memory.findings.fragmentation import is_caching, reserved_over_time
from composer_memprof.analysis.memory.pictures.timeline import extremes, since_first, sums_over_time
from composer_memprof.analysis.snapshot.model import DeviceHistory, Snapshot

#: Quarters before the part that is looked at closely.
_CLOSELY = 3


@dataclass(frozen=True)
class PhaseSpan:
    """A phase of a batch, in microseconds since the first event."""

    begin_us: int
    end_us: int
    batch: int
    phase: str


@dataclass(frozen=True)
class CategoriesOverTime:
    """One device's memory over time.

    Args:
        device (int): its index.
        moments (ndarray): int64, numbers of events, ascending; moment 0 is before the first one.
        time_us (ndarray, optional): int64, of each moment since the first event; None if the format has no times.
        sizes (dict): by category, int64, bytes allocated at each moment. What is always there comes first.
        reserved (ndarray, optional): int64, bytes reserved at each moment; None without a caching allocator.
        phases (list[PhaseSpan]): within the recording; empty if they are not known.
    """

    device: int
    moments: np.ndarray
    time_us: Optional[np.ndarray]
    sizes: dict[str, np.ndarray]
    reserved: Optional[np.ndarray]
    phases: list[PhaseSpan]

    def begin_of_last(self, batches: int) -> Optional[int]:
        """Microseconds from the first event to the begin of the last ``batches``; None if there are no more."""
        last = sorted({span.batch for span in self.phases})[-batches:]
        begin = min((span.begin_us for span in self.phases if last and span.batch == last[0]), default=0)
        return begin or None


def categories_over_time(snapshot: Snapshot, history: DeviceHistory, spans: int) -> CategoriesOverTime:
    """The sizes at the moments of the largest and the smallest total of each of ``spans`` spans of events.

    If the training failed, there are as many moments in its last quarter as in all others: it is looked at closely.
    """
    lives = lifetimes(history)
    total = lives.allocated()
    moments = extremes(total, spans)
    if snapshot.error or snapshot.oom is not None:
        begin = _CLOSELY * len(total) // 4
        moments = np.union1d(moments, begin + extremes(total[begin:], spans // 2))
    category = categories(snapshot, history, lives).category
    sizes = sums_over_time(category, len(CATEGORIES), lives.start + 1, lives.freed + 1, lives.size, moments)
    steadiest = np.lexsort((-sizes.max(axis=1), -sizes.min(axis=1)))
    order = [code for code in steadiest.tolist() if sizes[code].any()]
    times = None
    if history.has_times:
        times = since_first(history.time_us)[moments]
    return CategoriesOverTime(
        device=history.device,
        moments=moments,
        time_us=times,
        sizes={CATEGORIES[code]: sizes[code] for code in order},
        reserved=reserved_over_time(history)[moments] if is_caching(snapshot, history) else None,
        phases=_phases(snapshot, history) if times is not None else [],
    )


def _phases(snapshot: Snapshot, history: DeviceHistory) -> list[PhaseSpan]:
    phases = snapshot.phases
    if not len(phases) or not len(history.time_us):
        return []
    first, last = int(history.time_us[0]), int(history.time_us.max())
    begins = np.clip(phases.time_us, first, last) - first
    ends = np.append(begins[1:], last - first)
    return [
        PhaseSpan(begin, end, batch, phases.names[name])
        for begin, end, batch, name in zip(*(column.tolist() for column in (begins, ends, phases.batch, phases.name)))
        if end > begin
    ]
