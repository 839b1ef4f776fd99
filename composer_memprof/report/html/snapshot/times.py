"""Which points of a long curve the page has."""

from __future__ import annotations

import numpy as np


def times_kept(times: np.ndarray, most: int) -> np.ndarray:
    """The moments whose times the page has: all, or evenly spread ones and both ends of the longest pauses, where
    interpolation would be most wrong."""
    if len(times) <= most:
        return np.arange(len(times))
    even = np.linspace(0, len(times) - 1, most // 2).astype(np.int64)
    pauses = np.argpartition(-np.diff(times), most // 4)[: most // 4]
    return np.unique(np.concatenate([even, pauses, pauses + 1]))


def changes_kept(values: np.ndarray, most: int) -> np.ndarray:
    """The first moment and those with another value than before; if there are too many, the extremes of each span."""
    found = np.append(0, np.flatnonzero(np.diff(values)) + 1)
    if len(found) <= most:
        return found
    width = -(-len(found) // (most // 2))
    groups = [found[begin : begin + width] for begin in range(0, len(found), width)]
    kept = [place for group in groups for place in (group[values[group].argmax()], group[values[group].argmin()])]
    return np.unique([0, *kept])
