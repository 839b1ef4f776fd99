"""Host memory over time: a sampling thread beside exact readings, charged to the phases of a batch.

with HostMemoryRecorder(write=print, interval=0.5) as recorder:
    recorder.mark('forward', batch=0)
    ...
    recorder.mark('backward', batch=0)
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Optional

import psutil

from composer_memprof.recorders.host.processes import (
    Cgroup,
    CgroupMemory,
    ProcessReader,
    child_pids,
    is_dataloader_worker,
    machine_memory,
    process_details,
    process_name,
)
from composer_memprof.recorders.host.trend import Growth, Series

#: Costly readings (milliseconds; seconds in a very large process) come at most this often, and never take up more
#: than this share of the time. The look for new children comes at most this often too, in seconds.
_DETAILS_EVERY_S = 10.0
_DETAILS_SHARE = 0.002
_CHILDREN_EVERY_S = 1.0
#: Exact readings of the workers, at the end of batches, at most this often.
_WORKERS_EVERY_S = 0.01
_SUSPECTS_KEPT = 8


class WriteError(OSError):
    """The record can't be written any further."""


@dataclass(frozen=True)
class Suspect:
    """What grows: this process in its ``phase``, or a DataLoader worker."""

    name: str
    growth: Growth


@dataclass
class _Worker:
    number: int
    reader: ProcessReader
    series: Series


class HostMemoryRecorder:
    """Samples this process and its children; usable without a Trainer.

    Args:
        write (Callable): takes each record, one line of JSON. Called from the sampling thread.
        interval (float): seconds between samples.
        batch (int): that the recording begins with. Default: ``0``.
        ignores (Callable, optional): tells of a child's pid whether it is none of the user's.
        cgroup (Cgroup, optional): to read, for tests.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        interval: float = 0.5,
        batch: int = 0,
        ignores: Callable[[int], bool] = lambda pid: False,
        cgroup: Optional[Cgroup] = None,
    ) -> None:
        self._write = write
        self._interval = interval
        self._ignores = ignores
        self._cgroup = cgroup or Cgroup()
        self._own = ProcessReader()
        self._series = Series()
        self._phase = 'start'
        self._batch = batch
        self._last_rss = self._own.rss()
        self._charged: dict[str, int] = {}
        self._workers: dict[int, _Worker] = {}
        self._ended_suspects: list[Suspect] = []
        self._others: dict[int, ProcessReader] = {}
        self._workers_lock = threading.Lock()
        self._workers_read = 0.0
        self._children_found = -_CHILDREN_EVERY_S
        self._details_due = 0.0
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None
        #: The newest sample, flat: names and numbers. Another object with each sample.
        self.latest: dict[str, Any] = {}
        self.cgroup_memory: Optional[CgroupMemory] = None
        self.error: Optional[BaseException] = None

    def start(self) -> None:
        """Begin to sample, with a first sample at once; what costs more comes from the thread."""
        self._sample(details=False)
        self._thread = threading.Thread(target=self._run, name='memprof-host-rss', daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the sampling with a last sample and a summary."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
            self._thread = None
        self._sample(details=False)
        growth = self.growth()
        suspect = self.suspect()
        self._record(
            'summary',
            growth=None if growth is None else asdict(growth),
            suspect=None if suspect is None else asdict(suspect),
            charged=dict(self._charged),
        )
        self._own.close()
        with self._workers_lock:
            for reader in [*(worker.reader for worker in self._workers.values()), *self._others.values()]:
                reader.close()
            self._workers.clear()
            self._others.clear()

    def __enter__(self) -> HostMemoryRecorder:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # -- on the training thread ---------------------------------------------------------------------------------

    def mark(self, phase: str, batch: int) -> None:
        """From here on ``phase`` runs: what was taken up or given back since the last mark is charged to the one before."""
        rss = self._own.rss()
        grown = rss - self._last_rss
        if grown:
            self._charged[self._phase] = self._charged.get(self._phase, 0) + grown
            self._last_rss = rss
        self._phase = phase
        self._batch = batch

    def end_batch(self, batch: int) -> None:
        """Take this process's and its workers' exact sizes after a batch."""
        self.mark('between batches', batch)
        self._series.add(batch, self._last_rss)
        now = time.monotonic()
        if now - self._workers_read < _WORKERS_EVERY_S:
            return
        self._workers_read = now
        if not self._workers and now - self._children_found > _CHILDREN_EVERY_S / 4:
            self._find_children()
        with self._workers_lock:
            for pid, worker in list(self._workers.items()):
                try:
                    worker.series.add(batch, worker.reader.rss())
                except (OSError, IndexError):
                    self._bury(pid)

    # -- answers ------------------------------------------------------------------------------------------------

    def growth(self) -> Optional[Growth]:
        """Of this process itself."""
        return self._series.growth()

    def suspect(self) -> Optional[Suspect]:
        """Who clearly grows, the fastest of them; None where nobody does."""
        suspects = []
        own = self.growth()
        if own is not None and own.clear:
            suspects.append(Suspect(f'the training process, most of it in {self._phase_grown_most()}', own))
        with self._workers_lock:
            workers = [_suspect_of(pid, worker) for pid, worker in self._workers.items()]
            suspects += [*self._ended_suspects, *(worker for worker in workers if worker is not None)]
        return max(suspects, key=lambda suspect: suspect.growth.per_batch, default=None)

    def _phase_grown_most(self) -> str:
        charged = dict(self._charged)
        charged.pop('start', None)
        return f'phase {max(charged, key=lambda phase: charged[phase])!r}' if charged else 'no phase that was marked'

    # -- sampling -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self._sample()
            except WriteError as error:  # the callback asks for it
                self.error = error
                return
            except (OSError, ValueError, IndexError, psutil.Error):  # a process ended while it was read, say
                continue

    def _sample(self, details: bool = True) -> None:
        now = time.monotonic()
        usage = self._own.read()
        sample: dict[str, Any] = {'rss': usage.rss, 'vms': usage.vms, 'shared': usage.shared}
        if now - self._children_found >= _CHILDREN_EVERY_S:
            self._find_children()
        children = self._read_children()
        sample['children_rss'] = sum(child['rss'] for child in children)
        sample['workers_rss'] = sum(child['rss'] for child in children if 'worker' in child)
        self.cgroup_memory = self._cgroup.read()
        if self.cgroup_memory is not None:
            sample['cgroup_usage'] = self.cgroup_memory.usage
            if self.cgroup_memory.limit is not None:
                sample['cgroup_limit'] = self.cgroup_memory.limit
        if details and now >= self._details_due:
            sample.update(machine_memory())
            sample.update(process_details())
            taken = time.monotonic() - now
            self._details_due = now + max(_DETAILS_EVERY_S, taken / _DETAILS_SHARE)
        self.latest = sample
        self._record('sample', **sample, children=children, charged=dict(self._charged))

    def _record(self, event: str, **values: Any) -> None:
        record = {'event': event, 'time': time.time(), 'batch': self._batch, 'phase': self._phase, **values}
        try:
            self._write(json.dumps(record))
        except OSError as error:
            raise WriteError(str(error)) from error

    def _find_children(self) -> None:
        self._children_found = time.monotonic()
        pids = [pid for pid in child_pids(os.getpid()) if not self._ignores(pid)]
        with self._workers_lock:
            known = {**{pid: worker.reader for pid, worker in self._workers.items()}, **self._others}
            for pid in known.keys() - set(pids):
                if pid in self._workers:
                    self._bury(pid)
                else:
                    self._others.pop(pid).close()
            for pid in pids:
                if pid in self._workers:
                    continue
                try:
                    reader = self._others.pop(pid, None) or ProcessReader(pid)
                except OSError:
                    continue
                if is_dataloader_worker(pid):
                    self._workers[pid] = _Worker(self._free_number(), reader, Series())
                else:
                    self._others[pid] = reader

    def _free_number(self) -> int:
        taken = {worker.number for worker in self._workers.values()}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def _bury(self, pid: int) -> None:
        """A worker has ended, as all do with an epoch; what it was found to do is kept."""
        worker = self._workers.pop(pid)
        worker.reader.close()
        suspect = _suspect_of(pid, worker)
        if suspect is not None:
            self._ended_suspects = [*self._ended_suspects, suspect][-_SUSPECTS_KEPT:]

    def _read_children(self) -> list[dict[str, Any]]:
        children: list[dict[str, Any]] = []
        with self._workers_lock:
            for pid, worker in self._workers.items():
                children.append({'pid': pid, 'worker': worker.number, 'rss': _rss_or_none(worker.reader)})
            for pid, reader in self._others.items():
                children.append({'pid': pid, 'name': process_name(pid), 'rss': _rss_or_none(reader)})
        return [child for child in children if child['rss'] is not None]


def _suspect_of(pid: int, worker: _Worker) -> Optional[Suspect]:
    growth = worker.series.growth()
    if growth is None or not growth.clear:
        return None
    return Suspect(f'DataLoader worker {worker.number} (pid {pid})', growth)


def _rss_or_none(reader: ProcessReader) -> Optional[int]:
    try:
        return reader.rss()
    except (OSError, IndexError):  # it has ended since
        return None
