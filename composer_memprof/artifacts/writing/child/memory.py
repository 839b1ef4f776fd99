"""Memory of the training that a forked child does not get: its weights and optimizer state, which no file is made from.

While a child lives, each page of memory that the training writes to is copied first, once. For what it rewrites in every
step that would make a step several times as long, and take room twice.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from composer_memprof.messages import errors_logged

_Owner = TypeVar('_Owner')
#: Finds ranges of memory, as address and bytes.
_FindRanges = Callable[[Any], Iterable[tuple[int, int]]]
#: Smaller ranges are left as they are.
_LEAST = 1 << 20

_sources: weakref.WeakKeyDictionary[Any, _FindRanges] = weakref.WeakKeyDictionary()


def leave_out(owner: _Owner, find: Callable[[_Owner], Iterable[tuple[int, int]]]) -> None:
    """Leave what ``find(owner)`` finds out of children, for as long as ``owner`` lives."""
    _sources[owner] = find


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    """In this block a fork leaves it out. The user's own forks of this thread are as they were."""
    ranges: list[tuple[int, int]] = []
    parent = os.getpid()
    try:
        with errors_logged('memory could not be left out of a child'):
            for owner, find in list(_sources.items()):
                ranges += map(_whole_pages, find(owner))
            ranges = [(begin, size) for begin, size in ranges if size >= _LEAST]
            for begin, size in ranges:
                _madvise()(begin, size, mmap.MADV_DONTFORK)
        yield
    finally:
        if os.getpid() == parent:
            for begin, size in ranges:
                _madvise()(begin, size, mmap.MADV_DOFORK)


def _whole_pages(memory: tuple[int, int]) -> tuple[int, int]:
    """Without the first and the last page, in which the allocator of the process keeps its own data."""
    begin, size = memory
    page = mmap.PAGESIZE
    first = -(-begin // page) * page + page
    last = (begin + size) // page * page - page
    return first, max(last - first, 0)


@functools.cache
def _madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
