"""Python objects of a data set that DataLoader workers copy page by page, though each only reads them.

A worker is a fork of the training process and shares its memory. Whoever looks at a Python object writes the object's
reference count, and the system then copies the page for that worker (copy-on-write). The resident size of the worker
stays as it is; what is private of it grows.

>>> class Rows:
...     def __init__(self):
...         self.rows = [[number, str(number)] for number in range(1000)]
>>> objects_of(Rows()).name
'Rows.rows, a list of 1000'
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from torch.utils.data import Dataset

from composer_memprof.recorders.host.processes import private_and_resident, resident
from composer_memprof.recorders.host.summary import CopiedObjects

#: Seconds between two readings of what is private, at least; the share of the time that they may take; and the workers that are
#: read, which stand for the others. A reading takes some 25 ms for each GiB of a process.
_READ_EVERY_S, _SHARE, _READ = 0.2, 0.01, 4
#: Seconds of readings that are free: a short run is read at each sample.
_FREE_S = 0.3
#: A last reading is made at the end if the one before took less, in seconds.
_QUICK_S = 0.2
#: Things of a container that are measured, how deep each is looked into, and how deep data sets may be nested.
_MEASURED, _DEPTH, _NESTED = 64, 6, 4
#: A write copies one page. The rest of a larger object stays shared.
_PAGE = 4096
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)


@dataclass(frozen=True)
class PythonObjects:
    """The Python objects that a data set holds.

    Args:
        name (str): the largest container of them, in words: ``'Rows.rows, a list of 1000'``; ``''`` if there is none.
        bytes (int): of the pages that reading all of them copies, about.
    """

    name: str = ''
    bytes: int = 0


def objects_of(dataset: Any) -> PythonObjects:
    """The Python objects of a data set, and of the data sets within it. Of long containers, some things are measured."""
    found = [
        PythonObjects(f'{type(owner).__name__}.{name}, {_in_words(value)}', _written(value, _DEPTH))
        for owner in _with_nested(dataset, _NESTED)
        for name, value in _attributes(owner).items()
        if isinstance(value, _CONTAINERS) or _has_objects(value)
    ]
    largest = max(found, key=lambda each: each.bytes, default=PythonObjects())
    return PythonObjects(largest.name, sum(each.bytes for each in found))


def _with_nested(dataset: Any, depth: int) -> Iterator[Any]:
    yield dataset
    if depth:
        for value in _attributes(dataset).values():
            things = value if isinstance(value, (list, tuple)) else [value]
            for each in itertools.islice(things, _MEASURED):
                if isinstance(each, Dataset):
                    yield from _with_nested(each, depth - 1)


def _attributes(thing: Any) -> Mapping[str, Any]:
    attributes = getattr(thing, '__dict__', None)
    return dict(attributes) if isinstance(attributes, dict) else {}


def _has_objects(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.hasobject


def _in_words(container: Any) -> str:
    if isinstance(container, np.ndarray):
        return f'an array of {container.size} objects'
    return f'a {type(container).__name__} of {len(container)}'


def _written(thing: Any, depth: int) -> int:
    """Bytes of a thing, and of what it holds, whose pages a reader copies."""
    own = min(sys.getsizeof(thing), _PAGE)
    if not depth or isinstance(thing, (str, bytes, int, float, bool, type(None), type, Dataset)):
        return own  # a data set within this one is measured by itself
    if isinstance(thing, dict):
        return own + _of_all(thing, len(thing), depth) + _of_all(thing.values(), len(thing), depth)
    if isinstance(thing, _CONTAINERS):
        return own + _of_all(thing, len(thing), depth)
    if _has_objects(thing):
        return own + _of_all(thing.flat, thing.size, depth)
    return own + sum(_written(each, depth - 1) for each in itertools.islice(_attributes(thing).values(), _MEASURED))


def _of_all(things: Iterable[Any], count: int, depth: int) -> int:
    """Of all things of a container, by some of them. One that is there several times is there once."""
    if isinstance(things, (list, tuple)) and count > _MEASURED:  # what comes first may be alike
        things = things[:: count // _MEASURED]
    measured = list(itertools.islice(things, _MEASURED))
    distinct = {id(each): each for each in measured}
    size = sum(_written(each, depth - 1) for each in distinct.values())
    return size * count // len(measured) if measured and len(distinct) > len(measured) // 2 else size


class CopiedPages:
    """Reads how much memory workers have copied. Used by the sampling thread.

    Attributes:
        workers (int): how many there were at most.
        most (int): bytes that a worker has copied, the one that has copied most.
    """

    def __init__(self) -> None:
        #: The resident bytes of each worker when it was seen first.
        self._resident: dict[int, int] = {}
        #: The first reading comes after the first samples, which it would delay.
        self._due = time.monotonic() + _READ_EVERY_S
        self._took = self._spent = 0.0
        self.workers = self.most = 0

    def read(self, pids: list[int], *, is_last: bool = False) -> None:
        """Read some of the workers, if a reading is due.

        Args:
            pids (list[int]): of the workers.
            is_last (bool): the recording ends.
        """
        self._resident = {pid: size for pid, size in self._resident.items() if pid in pids}
        for pid in pids[:_READ]:
            if pid not in self._resident and (size := resident(pid)) is not None:
                self._resident[pid] = size
        began = time.monotonic()
        if not pids or (began < self._due and not (is_last and self._took < _QUICK_S)):
            return
        self.workers = max(self.workers, len(pids))
        for pid in pids[:_READ]:
            sizes = private_and_resident(pid)
            if sizes is not None:
                private, now = sizes
                # What it has allocated itself is private, too, but resident memory grows by it.
                new = max(now - self._resident.setdefault(pid, now), 0)
                self.most = max(self.most, private - new)
        self._took = time.monotonic() - began
        self._spent += self._took
        self._due = began + max(_READ_EVERY_S, self._took / _SHARE if self._spent > _FREE_S else 0.0)

    def found(self, objects: PythonObjects) -> Optional[CopiedObjects]:
        """What was copied so far; None if nothing was read."""
        if not self.workers:
            return None
        return CopiedObjects(self.workers, self.most, objects.name, objects.bytes)
