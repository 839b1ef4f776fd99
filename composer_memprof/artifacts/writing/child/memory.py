"""Memory of a forked child: whether there is room for one, and what it does not copy.

A child shares the training's memory: the first write of either process to a page copies that page. Weights and optimizer
state are rewritten in every step. Copying them would make a step several times as long and take their room twice, and no
file is made from them, so a child does not get them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Optional, TypeVar

import psutil

from composer_memprof.cgroup import Cgroup
from composer_memprof.messages import errors_logged, human_bytes

# -- room ---------------------------------------------------------------------------------------------------------------

#: The share of its own memory that the training is expected to rewrite while a child lives.
_REWRITTEN_SHARE = 0.2
#: The beginning of the reason.
NO_MEMORY = 'memory is short'

_cgroup = Cgroup()


@dataclass(frozen=True)
class Room:
    """Host memory for a child.

    Args:
        free (int): bytes that are left.
        needed (int): bytes that a child may take.
        of_what (str): what leaves no more: ``'on this machine'``, or a limit.
        used (int): bytes that this process has for itself.
    """

    free: int
    needed: int
    of_what: str
    used: int


def why_no_memory(cgroup: Optional[Cgroup] = None) -> Optional[str]:
    """Why no child should be forked now; None if there is room for one. See :func:`room_for_child`."""
    room = room_for_child(cgroup)
    if room is None or room.free >= room.needed:
        return None
    return (
        f'{NO_MEMORY}: {human_bytes(room.free)} left {room.of_what}, and writing it may take {human_bytes(room.needed)}'
    )


def room_for_child(cgroup: Optional[Cgroup] = None) -> Optional[Room]:
    """The memory that is left for a child; None if it can't be read.

    Args:
        cgroup (Cgroup, optional): whose limit applies. Default: that of this process.
    """
    try:
        used, free = psutil.Process().memory_info(), psutil.virtual_memory().available
    except (psutil.Error, OSError):  # /proc can't be read, as without a free descriptor
        return None
    own = used.rss - getattr(used, 'shared', 0)
    needed, of_what = int(_REWRITTEN_SHARE * own), 'on this machine'
    memory = (cgroup or _cgroup).read()
    if memory is not None and memory.limit is not None and memory.limit - memory.usage < free:
        free, of_what = max(memory.limit - memory.usage, 0), f'below the limit of {human_bytes(memory.limit)}'
    return Room(free, needed, of_what, own)


# -- exclusion ----------------------------------------------------------------------------------------------------------

_Owner = TypeVar('_Owner')
#: Finds ranges of memory, as address and bytes.
_FindRanges = Callable[[Any], Iterable[tuple[int, int]]]
#: Smaller ranges are shared like all other memory.
_SMALLEST_BYTES = 1 << 20

#: What finds the memory of each owner, and the thread that rewrites that memory.
_excluded: weakref.WeakKeyDictionary[Any, tuple[_FindRanges, int]] = weakref.WeakKeyDictionary()


def exclude_from_children(owner: _Owner, find: Callable[[_Owner], Iterable[tuple[int, int]]]) -> None:
    """Exclude the memory that ``find(owner)`` returns from all later children of this thread, while ``owner`` lives.

    A child that another thread forks has that memory: ``find`` may not run there. torch replaces gradients without
    Python's lock, so that a thread which looks at another one's gradients reads freed memory (SIGSEGV).
    """
    _excluded[owner] = find, threading.get_ident()


@contextlib.contextmanager
def memory_excluded() -> Iterator[None]:
    """A fork inside of this block gets no excluded memory. Forks of the user's own code, outside of it, get all."""
    ranges: list[tuple[int, int]] = []
    parent = os.getpid()
    try:
        with errors_logged('memory could not be left out of a child'):
            for owner, (find, thread) in list(_excluded.items()):
                if thread == threading.get_ident():
                    ranges += map(_whole_pages, find(owner))
            ranges = [(begin, size) for begin, size in ranges if size >= _SMALLEST_BYTES]
            for begin, size in ranges:
                _madvise()(begin, size, mmap.MADV_DONTFORK)
        yield
    finally:
        if os.getpid() == parent:
            for begin, size in ranges:
                _madvise()(begin, size, mmap.MADV_DOFORK)


def _whole_pages(memory: tuple[int, int]) -> tuple[int, int]:
    """The range without its first and last page, in which the allocator of the process keeps its own data."""
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
