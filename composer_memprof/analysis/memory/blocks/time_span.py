"""A part of a recording, by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.snapshot.model import DeviceHistory
from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError


@dataclass(frozen=True)
class TimeSpan:
    """The begin and end of a part of a recording, in milliseconds after the first event of a device; None for no limit.

    Raises:
        ValueError: if the span ends before it begins.
    """

    begin_ms: Optional[float] = None
    end_ms: Optional[float] = None

    def __post_init__(self) -> None:
        if self.begin_ms is not None and self.end_ms is not None and self.end_ms < self.begin_ms:
            raise ValueError(f'the end, {self.end_ms:g} ms, comes before the beginning, {self.begin_ms:g} ms')


def check_span(histories: Sequence[DeviceHistory], span: TimeSpan) -> None:
    """Refuse a span in which nothing was recorded.

    Raises:
        SnapshotError: if no device has times, or the span comes before the first event or after the last one.
    """
    lengths = [float(_after_first_ms(history)[-1]) for history in histories if history.has_times]
    if not lengths:
        raise SnapshotError('the recording has no times, so no part of it can be chosen')
    if max(span.begin_ms or 0, 0) > max(lengths) or (span.end_ms is not None and span.end_ms < 0):
        raise SnapshotError(f'the recording has no event there; its last one is {max(lengths):.1f} ms after its first')


def moments_within(history: DeviceHistory, span: TimeSpan) -> slice:
    """The numbers of events after which the device was in a state that it had within ``span``, as a slice.

    The state at the beginning is that after the last event before it. Without times it is the whole recording.
    """
    if not history.has_times:
        return slice(None)
    after_ms = _after_first_ms(history)
    first = 0 if span.begin_ms is None else int(np.searchsorted(after_ms, span.begin_ms, side='left'))
    last = len(after_ms) if span.end_ms is None else int(np.searchsorted(after_ms, span.end_ms, side='right'))
    return slice(first, last + 1)


def _after_first_ms(history: DeviceHistory) -> np.ndarray:
    """The time of each event. A time that steps back, as between threads, is replaced by the latest time before it."""
    return (np.maximum.accumulate(history.time_us) - history.time_us[0]) / 1000
