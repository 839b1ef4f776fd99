"""The changes that fit together where none fits alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_Change = TypeVar('_Change')
#: Most combinations that are tried.
_MOST = 24


def combination(changes: Sequence[_Change], needs: Callable[[Sequence[_Change]], int]) -> list[_Change]:
    """The changes that fit together, and none of them that could be left out; if none do, those that come closest.

    They are taken one after the other, each if it lowers what the ones before it need, until they fit; those that
    lowered nothing are tried again after that. Then each is left out if the rest fits without it, the dearest first.

    Args:
        changes: the cheapest first.
        needs: tries some of them together. The bytes that they need of the device; 0 if they fit.

    >>> combination([1, 2, 4, 8], lambda some: 0 if sum(some) >= 6 else 9 - sum(some))
    [2, 4]
    """
    left = _MOST

    def tried(some: Sequence[_Change], otherwise: int) -> int:
        nonlocal left
        left -= 1
        return needs(some) if left >= 0 else otherwise

    found: list[_Change] = []
    lowest = tried(found, 0)
    lowers = True
    while lowest and lowers:
        lowers = False
        for change in changes:
            if lowest and change not in found:
                need = tried([*found, change], lowest)
                if need < lowest:
                    found, lowest, lowers = [*found, change], need, True
    if lowest == 0:
        for change in sorted(found[:-1], key=changes.index, reverse=True):  # the last one is needed
            fewer = [each for each in found if each is not change]
            if tried(fewer, 1) == 0:
                found = fewer
    return found
