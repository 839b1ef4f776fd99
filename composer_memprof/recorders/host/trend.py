"""Whether a memory series grows steadily, and how fast: a robust slope with its interval, and a check of steadiness.

A process also takes up memory in steps while it warms up, and again when a profiler records. Neither is a leak. A leak
grows at about the same rate in every part of the series.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

#: Within fewer batches, growth cannot be told from a step.
FEWEST_BATCHES = 8
_MIN_POINTS = 16
_MIN_BATCHES = 12
#: The first part of a series is warm-up and is left out.
_WARMUP_SHARE = 1 / 3
#: Normal quantile of a two-sided 99 % interval.
_Z = 2.576
#: Each fifth of the series must grow at least at this share of the overall rate.
_STEADY_SHARE = 0.4
#: Points of which the median takes the place of each, so that a single peak counts for nothing.
_SMOOTHED = 5
#: Less growth in total is noise, at any rate.
_MIN_GROWTH_BYTES = 8 << 20
_MIN_GROWTH_SHARE = 0.01


@dataclass(frozen=True)
class Trend:
    """The growth of a series.

    Args:
        per_batch (float): bytes per batch.
        low (float): lower end of the 99 % interval of ``per_batch``.
        high (float): upper end.
        clear (bool): True if the growth is steady and too large to be noise.
    """

    per_batch: float
    low: float
    high: float
    clear: bool


class Series:
    """Points (batch, bytes) of a run of any length, in bounded memory: when full, every second point is dropped."""

    def __init__(self, capacity: int = 192) -> None:
        self._capacity = capacity
        self._stride = 1
        self._seen = 0
        self.batches: list[int] = []
        self.bytes: list[int] = []

    def add(self, batch: int, size: int) -> None:
        self._seen += 1
        if self._seen % self._stride:
            return
        self.batches.append(batch)
        self.bytes.append(size)
        if len(self.batches) >= self._capacity:
            self.batches, self.bytes = self.batches[1::2], self.bytes[1::2]
            self._stride *= 2

    def trend(self) -> Optional[Trend]:
        return estimate_trend(self.batches, self.bytes)


def estimate_trend(batches: Sequence[int], sizes: Sequence[int]) -> Optional[Trend]:
    """The trend of sizes (bytes) over batches; None if there are too few points.

    The slope is that of Theil and Sen, the median over all pairs of points; its interval is Sen's, from Kendall's
    variance (P. K. Sen, "Estimates of the regression coefficient based on Kendall's tau", 1968).
    """
    skipped = int(len(batches) * _WARMUP_SHARE)
    x = np.asarray(batches[skipped:], dtype=np.float64)
    y = np.asarray(sizes[skipped:], dtype=np.float64)
    if len(x) < _MIN_POINTS or x[-1] - x[0] < _MIN_BATCHES:
        return None
    i, j = np.triu_indices(len(x), 1)
    apart = x[j] > x[i]
    slopes = np.sort((y[j] - y[i])[apart] / (x[j] - x[i])[apart])
    n = len(x)
    spread = _Z * np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = slopes[max(int((len(slopes) - spread) / 2), 0)]
    high = slopes[min(int((len(slopes) + spread) / 2), len(slopes) - 1)]
    slope = float(np.median(slopes))
    grown = slope * (x[-1] - x[0])
    clear = low > 0 and grown > max(_MIN_GROWTH_BYTES, _MIN_GROWTH_SHARE * y[0]) and _is_steady(x, y, slope)
    clear = clear and _is_line(x, y)
    return Trend(slope, float(low), float(high), bool(clear))


def _is_steady(x: np.ndarray, y: np.ndarray, slope: float) -> bool:
    centers = [(np.median(a), np.median(b)) for a, b in zip(np.array_split(x, 5), np.array_split(y, 5))]
    return all(
        later_y - y0 >= _STEADY_SHARE * slope * (later_x - x0)
        for (x0, y0), (later_x, later_y) in zip(centers, centers[1:])
    )


def _is_line(x: np.ndarray, y: np.ndarray) -> bool:
    """True if a straight line fits better than any three levels: one or two steps amid noise can look like growth."""
    x = x[_SMOOTHED // 2 : len(x) - _SMOOTHED // 2]
    y = np.median(np.lib.stride_tricks.sliding_window_view(y, _SMOOTHED), axis=1)
    y = y - y.mean()
    off_line = np.sum((y - np.polyval(np.polyfit(x - x[0], y, 1), x - x[0])) ** 2)
    sums = np.concatenate(([0.0], np.cumsum(y)))
    n = len(y)
    first, second = np.triu_indices(n + 1, 1)  # where the second and the third level begin
    first, second = first[first > 0], second[first > 0]
    last = np.where(second < n, sums[n] - sums[second], 0.0)
    explained = sums[first] ** 2 / first + (sums[second] - sums[first]) ** 2 / (second - first)
    off_levels = np.sum(y**2) - np.max(explained + last**2 / np.maximum(n - second, 1))
    return bool(off_line <= off_levels)
