"""The changes that fit together where none fits alone."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import TypeVar

_Change = TypeVar('_Change')
#: Most trials of a search.
_MOST_TRIALS = 12


def combination(changes: Sequence[_Change], fits: Callable[[Sequence[_Change]], bool]) -> list[_Change]:
    """The cheapest of the changes that fit together, and none that could be left out; all of them if those do not fit.

    Args:
        changes: the cheapest first.
        fits: tries some of them together.

    >>> combination([1, 2, 4, 8], lambda some: sum(some) >= 6)
    [2, 4]
    """
    tried: dict[tuple[_Change, ...], bool] = {}

    def try_out(some: Sequence[_Change]) -> bool:
        if tuple(some) not in tried and len(tried) < _MOST_TRIALS:
            tried[tuple(some)] = fits(some)
        return tried.get(tuple(some), False)

    if not try_out(changes):
        return list(changes)
    counts = range(1, len(changes) + 1)
    needed = counts[bisect.bisect_left(counts, True, key=lambda count: try_out(changes[:count]))]
    found = list(changes[:needed])
    for change in reversed(found[:-1]):  # the last one is needed
        fewer = [each for each in found if each is not change]
        if try_out(fewer):
            found = fewer
    return found
