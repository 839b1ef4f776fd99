"""Which container of Python gets longer while the memory of a process grows: a list that somebody forgets to clear.

The first look, at the lengths of all containers, is made in the training's process; the second one, and the search for what
keeps the container, in a forked child.

>>> class Logger:
...     history = []
>>> before = lengths_of_containers()
>>> Logger.history += [bytes(1000) for _ in range(5000)]
>>> growing_container(before, grown=5_000_000).kept_by
'Logger.history, a list of 5000'
"""

from __future__ import annotations

import functools
import gc
import heapq
import itertools
import mmap
import operator
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import torch

from composer_memprof.recorders.allocations.keepers import keepers_of_objects
from composer_memprof.recorders.allocations.limits import CACHED, length_of

#: Containers that are shorter are not remembered: what they had is not known later, and all that they have counts as new.
_FEWEST = 8
#: A remembered container that has as many things more than before may be what grows: each may be large.
_FEWEST_MORE = 3
#: Objects of the process from which on nothing is looked at: a look takes some 0.1 us for each.
MOST_OBJECTS = 5_000_000
#: Things of a container whose sizes are measured; how deep each is looked into.
_MEASURED, _DEPTH = 32, 4
#: Containers that are measured, the ones that have grown most.
_CANDIDATES = 400
#: A container explains growth of which its new things are this share.
_EXPLAINS = 0.3
#: One whose things are larger than so many times the growth since the recording began holds what was there before.
_MOST_EXPLAINED = 2
#: Bytes of growth after which the trend is asked again, and twice of which lie between the two looks.
_STEP = 8 << 20
#: At the end there is one more search of a process that has grown so many times as much as at the last one.
_MUCH_MORE = 1.5
_KINDS = frozenset({list, dict, set, deque})
_SEARCHED = _KINDS | {CACHED}


@dataclass(frozen=True)
class Lengths:
    """The lengths of all containers at one time, int64, by ``id``, in the order of ``id``."""

    ids: np.ndarray
    lengths: np.ndarray

    def of(self, number: int) -> int:
        """The length that the container with this ``id`` had; 0 if there was none, or it was short."""
        place = int(np.searchsorted(self.ids, number))
        return int(self.lengths[place]) if place < len(self.ids) and self.ids[place] == number else 0


@dataclass(frozen=True)
class GrowingContainer:
    """A container that explains the growth of a process.

    Args:
        kept_by (str): what keeps it, in words: ``'Logger.history, a list of 5000'``; ``''`` if none was found.
        more (int): things that it has more than before.
        bytes (int): of these, about.
    """

    kept_by: str = ''
    more: int = 0
    bytes: int = 0


#: Finds the container, in a child of the process.
Search = Callable[[], Optional[GrowingContainer]]


def lengths_of_containers(fewest: int = _FEWEST) -> Optional[Lengths]:
    """The lengths of all containers of so many things; None in a process of very many objects."""
    if sys.getallocatedblocks() > MOST_OBJECTS:
        return None
    found = [
        (id(each), length)
        for each in gc.get_objects()
        if type(each) in _SEARCHED and (length := length_of(each)) >= fewest
    ]
    table = np.array(sorted(found), dtype=np.int64).reshape(-1, 2)
    return Lengths(table[:, 0].copy(), table[:, 1].copy())


def growing_container(
    before: Lengths, grown: int, grown_in_all: int = 0, fewest: int = _FEWEST, device: str = 'cpu'
) -> Optional[GrowingContainer]:
    """The container whose new things explain most of the bytes by which the process has grown; None if none does.

    Args:
        before (Lengths): at an earlier time.
        grown (int): bytes by which the process has grown since.
        grown_in_all (int): bytes by which it has grown since the recording began, if these are more. All things of a
            container that was made anew since the earlier time count as new, also those that an older one held.
        fewest (int): things of the shortest container that counts, as of ``before``.
        device (str): whose memory grows. Of a GPU, tensors on it count alone.
    """
    largest, most, more = 0, 0, 0
    longer = _longer(before, fewest)
    while longer:  # what was looked at is let go: it would be found among what keeps the container
        container, count = longer.pop()
        size = _bytes_of_newest(container, count, device)
        if most < size <= _MOST_EXPLAINED * max(grown, grown_in_all):
            largest, most, more = id(container), size, count
        del container
    if most < _EXPLAINS * grown:
        return None
    name = keepers_of_objects([largest]).get(largest)
    return None if name is None else GrowingContainer(name, more, most)


def _longer(before: Lengths, fewest: int) -> list[tuple[Any, int]]:
    """The containers that have grown most, each with how many things it has more."""
    found = [
        (each, length - had)
        for each in gc.get_objects()
        if type(each) in _SEARCHED
        and (length := length_of(each)) >= fewest
        and length - (had := before.of(id(each))) >= _FEWEST_MORE
    ]
    return heapq.nlargest(_CANDIDATES, found, key=operator.itemgetter(1))


def _bytes_of_newest(container: Any, count: int, device: str) -> int:
    if isinstance(container, CACHED):
        things: Iterable[Any] = [each for each in gc.get_referents(container) if type(each) is not dict]
    elif isinstance(container, dict):
        things = reversed(container.items())
    elif isinstance(container, (list, deque)):
        things = reversed(container)
    else:
        things = container
    return _whole_size(itertools.islice(things, count), count, _DEPTH, device)


def _whole_size(things: Iterable[Any], count: int, depth: int, device: str) -> int:
    """The bytes of a container's ``count`` things, by some of them. Of one that is there several times, one takes memory."""
    measured = list(itertools.islice(things, _MEASURED))
    distinct = {id(each): each for each in measured}
    size = sum(_size(each, depth, device) for each in distinct.values())
    return size * count // len(measured) if measured and len(distinct) == len(measured) else size


def _size(thing: Any, depth: int, device: str) -> int:
    """The bytes of a thing and of what it holds on a device, about: of a long container, some are measured."""
    if isinstance(thing, torch.Tensor):
        return int(thing.untyped_storage().nbytes()) if thing.device.type == device else 0
    own = len(thing) if isinstance(thing, mmap.mmap) else sys.getsizeof(thing)
    own = own if device == 'cpu' else 0
    if not depth or isinstance(thing, (type, str, bytes, int, float)):
        return own
    if isinstance(thing, (list, tuple, set, frozenset, deque)):
        return own + _whole_size(thing, len(thing), depth - 1, device)
    if isinstance(thing, dict):
        return own + _whole_size(thing.values(), len(thing), depth - 1, device)
    if isinstance(thing, np.ndarray) and thing.base is not None:
        return own + (int(thing.nbytes) if device == 'cpu' else 0)
    return own + sum(_size(each, depth - 1, device) for each in itertools.islice(_attributes(thing), _MEASURED))


def _attributes(thing: Any) -> Iterator[Any]:
    yield from getattr(thing, '__dict__', {}).values()


class GrowthWatch:
    """Decides when to look: first once the process clearly grows, then after it has grown further, again and again, ever
    more rarely. A process that does not grow is never looked at.

    Args:
        is_clear (Callable): True if the process clearly grows; asked after some growth alone.
        fewest (int): things of the shortest container that counts.
        device (str): whose memory grows: ``'cpu'`` for the process, or ``'cuda'``.
    """

    def __init__(self, is_clear: Callable[[], bool], fewest: int = _FEWEST, device: str = 'cpu') -> None:
        self._is_clear = is_clear
        self._fewest, self._device = fewest, device
        self._asked_at: Optional[int] = None
        self._least: Optional[int] = None
        self._before: Optional[Lengths] = None
        self._begin, self._due = 0, 0
        self._is_off = False
        self._searched = 0

    @property
    def began_at(self) -> Optional[int]:
        """The bytes of the process at the first look; None before it."""
        return None if self._before is None else self._begin

    def search(self, rss: int) -> Optional[Search]:
        """The search that is due now, at the end of a batch; None if none is.

        Args:
            rss (int): bytes of the process.
        """
        if self._is_off:
            return None
        if self._before is None:
            self._first_look(rss)
            return None
        return self._after(rss) if rss >= self._due else None

    def last_search(self, rss: int) -> Optional[Search]:
        """The search at the end of a recording, unless one was made when the process had grown nearly as much."""
        if self._before is None or rss < self._begin + max(_STEP, _MUCH_MORE * self._searched):
            return None
        return self._after(rss)

    def _first_look(self, rss: int) -> None:
        if self._asked_at is None or rss < self._asked_at:
            self._asked_at = rss
        self._least = rss if self._least is None else min(rss, self._least)
        if rss < self._asked_at + _STEP:
            return
        self._asked_at = rss
        if self._is_clear():
            self._before = lengths_of_containers(self._fewest)
            self._is_off = self._before is None
            self._begin, self._due = rss, rss + 2 * _STEP

    def _after(self, rss: int) -> Optional[Search]:
        assert self._before is not None and self._least is not None
        self._searched = rss - self._begin
        self._due = rss + 4 * (rss - self._begin)
        whole = rss - self._least
        return functools.partial(growing_container, self._before, rss - self._begin, whole, self._fewest, self._device)
