"""The child processes of this process: DataLoader workers, each with its sizes over batches, and others."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from composer_memprof.recorders.host.copied import CopiedPages
from composer_memprof.recorders.host.processes import ProcessReader, child_pids, is_dataloader_worker, process_name
from composer_memprof.recorders.host.trend import Series, Trend

#: Seconds between two searches for children; while no worker is known, a search at the end of a batch may come sooner.
_SEARCH_EVERY_S = 1.0
_SEARCH_WITHOUT_WORKERS_EVERY_S = 0.25
#: Seconds between two readings of the workers at the end of batches.
_READ_WORKERS_EVERY_S = 0.01
_MAX_ENDED = 8


@dataclass(frozen=True)
class GrowingProcess:
    """A process whose memory clearly grows. ``name`` is for people."""

    name: str
    trend: Trend


@dataclass
class _Worker:
    pid: int
    number: int
    reader: ProcessReader
    series: Series = field(default_factory=Series)

    def if_growing(self) -> Optional[GrowingProcess]:
        trend = self.series.trend()
        if trend is None or not trend.clear:
            return None
        return GrowingProcess(f'DataLoader worker {self.number} (pid {self.pid})', trend)


class Children:
    """Finds and reads the children of this process. Used by the training thread and the sampling thread.

    Args:
        ignores (Callable): called with a child's pid; True leaves the child out.
    """

    def __init__(self, ignores: Callable[[int], bool]) -> None:
        self._ignores = ignores
        self._lock = threading.Lock()
        self._workers: dict[int, _Worker] = {}
        self._others: dict[int, ProcessReader] = {}
        #: Of ended workers, those of an epoch together.
        self._ended_growing: list[list[GrowingProcess]] = [[]]
        self._searched = -_SEARCH_EVERY_S
        self._workers_read = 0.0
        #: What the workers have copied of the memory that they share with this process.
        self.copied = CopiedPages()

    def end_batch(self, batch: int) -> None:
        """Add each worker's size to its series."""
        now = time.monotonic()
        if now - self._workers_read < _READ_WORKERS_EVERY_S:
            return
        self._workers_read = now
        if not self._workers and now - self._searched > _SEARCH_WITHOUT_WORKERS_EVERY_S:
            self._search()
        with self._lock:
            for worker in list(self._workers.values()):
                try:
                    worker.series.add(batch, worker.reader.rss())
                except (OSError, IndexError):
                    self._remove_ended(worker)

    def read(self) -> list[dict[str, Any]]:
        """Each child's size in bytes: ``pid``, ``worker`` (its number) or ``name``, and ``rss``."""
        if time.monotonic() - self._searched >= _SEARCH_EVERY_S:
            self._search()
        children: list[dict[str, Any]] = []
        with self._lock:
            for worker in self._workers.values():
                children.append({'pid': worker.pid, 'worker': worker.number, 'rss': _rss_or_none(worker.reader)})
            for pid, reader in self._others.items():
                children.append({'pid': pid, 'name': process_name(pid), 'rss': _rss_or_none(reader)})
        return [child for child in children if child['rss'] is not None]

    def read_copied(self, *, is_last: bool = False) -> None:
        """Read what the workers have copied, if that is due. The training thread does not wait for it.

        Args:
            is_last (bool): the recording ends.
        """
        with self._lock:
            pids = list(self._workers)
        self.copied.read(pids, is_last=is_last)

    def growing(self) -> list[GrowingProcess]:
        """Workers that clearly grow, those of an epoch as one, ended ones included."""
        with self._lock:
            workers = [worker.if_growing() for worker in self._workers.values()]
            alive = [worker for worker in workers if worker is not None]
            *ended, last = self._ended_growing
            # Of the newest epoch, some workers may have ended.
            return [_together(group) for group in [*ended, [*last, *alive]] if group]

    def close(self) -> None:
        with self._lock:
            for reader in [*(worker.reader for worker in self._workers.values()), *self._others.values()]:
                reader.close()
            self._workers.clear()
            self._others.clear()

    def _search(self) -> None:
        self._searched = time.monotonic()
        try:
            pids = [pid for pid in child_pids(os.getpid()) if not self._ignores(pid)]
        except OSError:  # no file is left to open; the next search may find one
            return
        with self._lock:
            for worker in [worker for pid, worker in self._workers.items() if pid not in pids]:
                self._remove_ended(worker)
            for pid in self._others.keys() - set(pids):
                self._others.pop(pid).close()
            for pid in pids:
                if pid not in self._workers:
                    self._add(pid)

    def _add(self, pid: int) -> None:
        # A worker gets its name some time after it starts, so a child among the others may turn out to be one.
        try:
            reader = self._others.pop(pid, None) or ProcessReader(pid)
        except OSError:
            return
        if is_dataloader_worker(pid):
            self._workers[pid] = _Worker(pid, self._free_number(), reader)
        else:
            self._others[pid] = reader

    def _free_number(self) -> int:
        taken = {worker.number for worker in self._workers.values()}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def _remove_ended(self, worker: _Worker) -> None:
        """Workers end with each epoch. Whether one grew is kept."""
        del self._workers[worker.pid]
        worker.reader.close()
        growing = worker.if_growing()
        if growing is not None:
            self._ended_growing[-1].append(growing)
        if not self._workers and self._ended_growing[-1]:
            self._ended_growing = [*self._ended_growing, []][-_MAX_ENDED:]


def _together(growing: Sequence[GrowingProcess]) -> GrowingProcess:
    """Several workers as one that grows as fast as all of them."""
    if len(growing) == 1:
        return growing[0]
    trends = [each.trend for each in growing]
    summed = Trend(
        per_batch=sum(trend.per_batch for trend in trends),
        low=sum(trend.low for trend in trends),
        high=sum(trend.high for trend in trends),
        clear=True,
    )
    return GrowingProcess(f'{len(growing)} DataLoader workers together', summed)


def _rss_or_none(reader: ProcessReader) -> Optional[int]:
    try:
        return reader.rss()
    except (OSError, IndexError):  # the process has ended
        return None
