"""Columns of numbers out of lists of mappings that are not trusted: each value checked, none looked at twice."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import numpy as np

from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError

LARGEST = 2**63 - 1
#: Sums over a column have to fit as well.
_LARGEST_SUM = 2**62


def mappings(values: Any, what: str) -> list[dict[str, Any]]:
    """``values``, if it is a list of mappings."""
    if type(values) is not list:
        raise SnapshotError(f'it has no list of {what}s')
    if not set(map(type, values)) <= {dict}:
        raise SnapshotError(f'a {what} is no mapping')
    return values


def rows_of(values: Any, what: str, width: int) -> list[Any]:
    """``values``, if it is a list of lists or tuples of ``width`` values each; None counts as an empty one."""
    if values is None:
        return []
    if type(values) is not list or not set(map(type, values)) <= {list, tuple} or not set(map(len, values)) <= {width}:
        raise SnapshotError(f'its {what} are no list of {width} values each')
    return values


def values_of(rows: list[dict[str, Any]], key: str, default: Any = None) -> list[Any]:
    """What the rows have at ``key``."""
    try:
        return list(map(itemgetter(key), rows))
    except KeyError:
        return [row.get(key, default) for row in rows]


def whole_numbers(values: list[Any], what: str, smallest: int = 0) -> np.ndarray:
    """The values as int64.

    Raises:
        SnapshotError: if one is no whole number, or out of range.
    """
    try:
        if set(map(type, values)) <= {int}:
            column = np.fromiter(values, np.int64, len(values))
            if not len(column) or int(column.min()) >= smallest:
                return column
    except OverflowError:
        pass
    wrong = next(value for value in values if type(value) is not int or not smallest <= value <= LARGEST)
    raise SnapshotError(f'{what}={shown(wrong)} is not a number that it can be')


def sizes(values: list[Any], what: str) -> np.ndarray:
    """The values as bytes, whose sum fits into an int64 too."""
    column = whole_numbers(values, what)
    if column.sum(dtype=np.float64) > _LARGEST_SUM:
        raise SnapshotError(f'its {what}s add up to more than any machine has')
    return column


def whole(values: dict[str, Any], key: str, default: int | None = None, smallest: int = 0) -> int:
    """One whole number of a mapping."""
    value = values.get(key, default)
    if type(value) is not int or not smallest <= value <= LARGEST:
        raise SnapshotError(f'{key}={shown(value)} is not a number that it can be')
    return value


def texts(values: Iterable[Any], what: str) -> list[str]:
    """The values, if all are strings; what a terminal or a page can't show in them is replaced."""
    found = list(values)
    if not set(map(type, found)) <= {str}:
        raise SnapshotError(f'its {what} are not all text')
    return [printable(value) for value in found]


def printable(text: str) -> str:
    """Without control characters and lone surrogates: names come from the file, and end in a terminal or a page."""
    return text if text.isprintable() else ''.join(letter if letter.isprintable() else '?' for letter in text)


def shown(value: Any) -> str:
    """A value in an error message. A container is named by its type alone: it may be deep, or endless."""
    if type(value) is str:
        return repr(printable(value[:40]))
    if type(value) is int and abs(value) > 2**128:
        return 'a number of more than 128 bits'
    return str(value)[:40] if value is None or type(value) in (int, float, bool) else f'a {type(value).__name__}'
