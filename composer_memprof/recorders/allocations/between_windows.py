"""Whether the memory of a device grows from batch to batch outside of recordings, and which container grows with it.

A leak in some batches alone may fall into no recording. Of each batch's end, one number is read: on a GPU the bytes that
torch has allocated, on a CPU the resident bytes of the process. Only once it grows are the containers of Python looked at,
as in ``recorders.host.containers``.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Optional

import torch

from composer_memprof.messages import errors_logged
from composer_memprof.recorders.host.containers import GrowingContainer, GrowthWatch, Search
from composer_memprof.recorders.host.processes import ProcessReader
from composer_memprof.recorders.host.trend import FEWEST_BATCHES, Series

#: Seconds between two readings, at least: on a GPU one takes some 50 us.
_READ_EVERY_S = 0.005
#: Containers of so few things count: of a leak in some batches, a list of large tensors may be short.
_FEWEST = 3


class BetweenWindows:
    """Reads the memory of a device at the ends of batches that nothing records.

    Args:
        gpu (int, optional): the index of the GPU; None for the host.
    """

    def __init__(self, gpu: Optional[int] = None) -> None:
        self._gpu = gpu
        self._process = ProcessReader() if gpu is None else None
        self._series = Series()
        self._watch = GrowthWatch(self._is_clear, fewest=_FEWEST, device='cpu' if gpu is None else 'cuda')
        self._due = 0.0
        #: The batches of the first look at the containers, and of the last reading; and the bytes then.
        self._began: Optional[tuple[int, int]] = None
        self._last: Optional[tuple[int, int]] = None

    def end_batch(self, batch: int) -> Optional[Callable[[], dict[str, Any]]]:
        """Read the memory after a batch.

        Returns:
            Callable, optional: a search that is due, for a child; it returns what it found. None if none is.
        """
        now = time.monotonic()
        if now < self._due:
            return None
        self._due = now + _READ_EVERY_S
        size = self._read()
        self._series.add(batch, size)
        self._last = batch, size
        if self._began is not None and not self._lasts():
            return None
        search = self._watch.search(size)
        if self._began is None and self._watch.began_at is not None:
            self._began = batch, size
        return self._searching(search)

    def last_search(self) -> Optional[Callable[[], dict[str, Any]]]:
        """The search at the end of the training, if the memory has grown since the one before."""
        if self._last is None or not self._lasts():
            return None
        return self._searching(self._watch.last_search(self._last[1]))

    def _lasts(self) -> bool:
        """True once the batches since the first look are enough to tell growth from a step."""
        return self._began is not None and self._last is not None and self._last[0] - self._began[0] >= FEWEST_BATCHES

    def _is_clear(self) -> bool:
        """What torch has allocated on a GPU is the same after each batch; a process takes up memory while it warms up."""
        trend = None if self._process is None else self._series.trend()
        return self._process is None or (trend is not None and trend.clear)

    def close(self) -> None:
        if self._process is not None:
            self._process.close()

    def _read(self) -> int:
        if self._process is not None:
            return self._process.rss()
        return int(torch.cuda.memory_allocated(self._gpu))

    def _searching(self, search: Optional[Search]) -> Optional[Callable[[], dict[str, Any]]]:
        if search is None:
            return None
        memory = 0 if self._gpu is None else torch.cuda.get_device_properties(self._gpu).total_memory
        return functools.partial(self._found, search, memory)

    def _found(self, search: Search, memory: int) -> dict[str, Any]:
        """In a child, which may be forked some batches after it was asked for: what it sees is of the last one."""
        assert self._began is not None and self._last is not None
        trend = self._series.trend()
        (begin, first), (end, last) = self._began, self._last
        growth = {
            'on_host': self._gpu is None,
            'memory': memory,
            'size': last,
            'grown': last - first,
            'grown_lately': last - self._after(begin + (end - begin) // 2),
            'begin': begin,
            'end': end,
            'per_batch': None if trend is None else trend.per_batch,
            'clear': trend is not None and trend.clear,
        }
        container = None
        with errors_logged('the container that grows was not found'):
            container = search()
        return {**growth, **asdict(GrowingContainer() if container is None else container)}

    def _after(self, batch: int) -> int:
        """The bytes after a batch."""
        found = [size for known, size in zip(self._series.batches, self._series.bytes) if known >= batch]
        return found[0] if found else 0
