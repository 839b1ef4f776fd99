"""Checks for values of an untrusted file. Each function returns checked values, or raises a SnapshotError of one line.

Columns of numbers are checked as a whole, which takes a fraction of the time of a check for each value.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import numpy as np

from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError
from composer_memprof.messages import printable

LARGEST = 2**63 - 1
#: The sum of a column must fit into an int64 as well.
_LARGEST_SUM = 2**62


def mappings(values: Any, what: str) -> list[dict[str, Any]]:
    """``values``, if it is a list of mappings."""
    if type(values) is not list:
        raise SnapshotError(f'it has no list of {what}s')
    if not set(map(type, values)) <= {dict}:
        raise SnapshotError(f'each {what} must be a mapping')
    return values


def rows_of(values: Any, what: str, width: int) -> list[Any]:
    """``values``, if it is a list of lists or tuples of ``width`` values each. None is an empty list."""
    if values is None:
        return []
    if type(values) is not list or not set(map(type, values)) <= {list, tuple} or not set(map(len, values)) <= {width}:
        raise SnapshotError(f'its {what} must be a list of rows of {width} values')
    return values


def values_of(rows: list[dict[str, Any]], key: str, default: Any = None) -> list[Any]:
    """The value of each row at ``key``."""
    try:
        return list(map(itemgetter(key), rows))
    except KeyError:
        return [row.get(key, default) for row in rows]


def whole_numbers(values: list[Any], what: str, smallest: int = 0) -> np.ndarray:
    """The values as int64, each at least ``smallest``."""
    try:
        if set(map(type, values)) <= {int}:
            column = np.fromiter(values, np.int64, len(values))
            if not len(column) or int(column.min()) >= smallest:
                return column
    except OverflowError:
        pass
    raise _not_whole(what, next(value for value in values if not _is_whole(value, smallest)), smallest)


def sizes(values: list[Any], what: str) -> np.ndarray:
    """The values as bytes, int64; their sum fits into an int64 too."""
    column = whole_numbers(values, what)
    if column.sum(dtype=np.float64) > _LARGEST_SUM:
        raise SnapshotError(f'its {what}s add up to more than any machine has')
    return column


def whole(values: dict[str, Any], key: str, default: int | None = None, smallest: int = 0) -> int:
    """The whole number at ``key``, at least ``smallest``."""
    value: Any = values.get(key, default)
    if not _is_whole(value, smallest):
        raise _not_whole(key, value, smallest)
    return value


def _is_whole(value: Any, smallest: int) -> bool:
    return type(value) is int and smallest <= value <= LARGEST


def _not_whole(what: str, value: Any, smallest: int) -> SnapshotError:
    return SnapshotError(f'{what} must be a whole number from {smallest} to {LARGEST}, not {shown(value)}')


def texts(values: Iterable[Any], what: str) -> list[str]:
    """The values, if all are strings, in printable form."""
    found = list(values)
    if not set(map(type, found)) <= {str}:
        raise SnapshotError(f'its {what} must be text')
    return [printable(value) for value in found]


def text(values: dict[str, Any], key: str) -> str:
    """The text at ``key`` in one printable line of at most 2000 characters; ``''`` if there is none."""
    value = values.get(key)
    if value is None:
        return ''
    if type(value) is not str:
        raise SnapshotError(f'its {key} must be text, not {shown(value)}')
    return printable(' '.join(value.split()))[:2000]


def shown(value: Any) -> str:
    """A value for an error message. Of a container only its type is shown: it may be huge, or contain itself."""
    if type(value) is str:
        return repr(printable(value[:40]))
    if type(value) is int and abs(value) > 2**128:
        return 'a number of more than 128 bits'
    return str(value)[:40] if value is None or type(value) in (int, float, bool) else f'a {type(value).__name__}'


class Names:
    """Numbers the distinct names of ``what``, in printable form. None and ``''`` have number 0."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.names = ['']
        self._by_name: dict[str, int] = {}

    def index(self, name: Any) -> int:
        if name is None or name == '':
            return 0
        if type(name) is not str:
            raise SnapshotError(f'the name of a {self._what} must be text, not {shown(name)}')
        known = self._by_name.setdefault(name, len(self.names))
        if known == len(self.names):
            self.names.append(printable(name))
        return known

    def indices(self, names: list[Any]) -> np.ndarray:
        """The number of each name, int32."""
        if not set(map(type, names)) <= {str, type(None)}:
            self.index(next(name for name in names if type(name) is not str and name is not None))
        known = {name: self.index(name) for name in dict.fromkeys(names)}
        return np.fromiter(map(known.__getitem__, names), np.int32, len(names))
