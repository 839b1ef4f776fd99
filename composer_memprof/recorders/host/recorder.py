"""Host memory over time: samples from a thread, and exact readings that charge growth to the phases of a batch.

with HostMemoryRecorder(write=print, interval=0.5) as recorder:
    recorder.mark('forward', batch=0)
    ...
    recorder.mark('backward', batch=0)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Optional

import psutil

from composer_memprof.cgroup import Cgroup, CgroupMemory
from composer_memprof.recorders.host.children import Children, GrowingProcess
from composer_memprof.recorders.host.containers import GrowthWatch, Search
from composer_memprof.recorders.host.copied import PythonObjects, objects_of
from composer_memprof.recorders.host.processes import ProcessReader, machine_memory, process_details
from composer_memprof.recorders.host.sampler import Sampler
from composer_memprof.recorders.host.summary import (
    CopiedObjects,
    HostSample,
    HostSummary,
    HostTally,
    Suspect,
    training_process,
)
from composer_memprof.recorders.host.trend import Series, Trend
from composer_memprof.vocabulary import BETWEEN_BATCHES, START

#: Costly readings take milliseconds, or seconds in a very large process. They come at most this often in seconds, and
#: take at most this share of the time.
_DETAILS_EVERY_S = 10.0
_DETAILS_SHARE = 0.002


class WriteError(OSError):
    """A record cannot be written."""


class HostMemoryRecorder:
    """Samples this process and its children; usable without a Trainer.

    Args:
        write (Callable): called with each record, one line of JSON, also from the sampling thread.
        interval (float): seconds between samples.
        batch (int): the first batch. Default: ``0``.
        ignores (Callable): called with a child's pid; True leaves the child out. Default: all children are read.
        cgroup (Cgroup, optional): the cgroup to read. Default: that of this process.

    Attributes:
        latest (dict): the newest sample, names and numbers; each sample is a new dict.
        cgroup_memory (CgroupMemory, optional): the newest reading of the cgroup.
        summary (HostSummary, optional): the recording in short, once it has ended.
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
        self._cgroup = cgroup or Cgroup()
        self._process = ProcessReader()
        self._children = Children(ignores)
        self._series = Series()
        self._watch = GrowthWatch(self._clearly_grows)
        self._phase = START
        self._batch = batch
        self._last_rss = self._process.rss()
        #: Bytes that the process grew by, by phase.
        self._charged: dict[str, int] = {}
        self._details_due = 0.0
        #: Of the data set that workers read.
        self._objects: Optional[PythonObjects] = None
        self._sampler = Sampler('memprof-host-rss', interval, self._sample_if_possible)
        self.latest: dict[str, Any] = {}
        self.cgroup_memory: Optional[CgroupMemory] = None
        self._tally = HostTally()
        self.summary: Optional[HostSummary] = None

    @property
    def error(self) -> Optional[Exception]:
        """The error that ended the sampling, if any."""
        return self._sampler.error

    def start(self) -> None:
        """Begin to sample. The first sample is taken now, without costly readings."""
        self._sample(details=False)
        self._sampler.start()

    def stop(self) -> None:
        """End the sampling with a last sample and a summary."""
        self._sampler.stop()
        self._sample_if_possible(details=False, is_last=True)
        growing = self.fastest_growing()
        suspect = None if growing is None else Suspect(growing.name, growing.trend)
        summary = self.summary = self._tally.summary(self.trend(), suspect, dict(self._charged), self._copied())
        self._record(
            'summary',
            growth=None if summary.growth is None else asdict(summary.growth),
            suspect=None if suspect is None else asdict(suspect),
            charged=summary.charged,
            copied=None if summary.copied is None else asdict(summary.copied),
        )
        self._process.close()
        self._children.close()

    def __enter__(self) -> HostMemoryRecorder:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # -- on the training thread ---------------------------------------------------------------------------------

    def mark(self, phase: str, batch: int) -> None:
        """``phase`` starts now. Growth since the last mark is charged to the previous phase."""
        rss = self._process.rss()
        grown = rss - self._last_rss
        if grown:
            self._charged[self._phase] = self._charged.get(self._phase, 0) + grown
            self._last_rss = rss
        self._phase = phase
        self._batch = batch

    def end_batch(self, batch: int) -> None:
        """Read the exact sizes of this process and its workers after a batch."""
        self.mark(BETWEEN_BATCHES, batch)
        self._series.add(batch, self._last_rss)
        self._children.end_batch(batch)

    def search_for_container(self, *, is_last: bool = False) -> Optional[Search]:
        """A search for the container that gets longer as this process grows, for a child; None if none is due.

        Args:
            is_last (bool): the recording ends.
        """
        return self._watch.last_search(self._last_rss) if is_last else self._watch.search(self._last_rss)

    @property
    def wants_dataset(self) -> bool:
        """True if workers were seen, and :meth:`look_at` was not called."""
        return self._objects is None and self._children.copied.workers > 0

    def look_at(self, dataset: Any) -> None:
        """Measure the Python objects of the data set that the workers read."""
        self._objects = PythonObjects()  # the look may fail
        self._objects = objects_of(dataset)

    # -- results ------------------------------------------------------------------------------------------------

    def trend(self) -> Optional[Trend]:
        """The trend of this process, without its children; None while there are too few batches."""
        return self._series.trend()

    def _copied(self) -> Optional[CopiedObjects]:
        return self._children.copied.found(self._objects or PythonObjects())

    def _clearly_grows(self) -> bool:
        trend = self.trend()
        return trend is not None and trend.clear

    def fastest_growing(self) -> Optional[GrowingProcess]:
        """The process that clearly grows, the fastest if several do; None if none does."""
        growing = self._children.growing()
        trend = self.trend()
        if trend is not None and trend.clear:
            growing.insert(0, GrowingProcess(training_process(dict(self._charged)), trend))
        return max(growing, key=lambda process: process.trend.per_batch, default=None)

    # -- sampling -----------------------------------------------------------------------------------------------

    def _sample_if_possible(self, details: bool = True, *, is_last: bool = False) -> None:
        try:
            self._sample(details, is_last=is_last)
        except WriteError:
            raise
        except (OSError, ValueError, IndexError, psutil.Error):  # a process ended while it was read; no file is left
            pass

    def _sample(self, details: bool = True, *, is_last: bool = False) -> None:
        now = time.monotonic()
        usage = self._process.read()
        sample: dict[str, Any] = {'rss': usage.rss, 'vms': usage.vms, 'shared': usage.shared}
        children = self._children.read()
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
        self._children.read_copied(is_last=is_last)
        copied = self._copied()
        more: dict[str, Any] = {} if copied is None else {'copied': asdict(copied)}
        record = self._record('sample', **sample, children=children, charged=self._charged_so_far(usage.rss), **more)
        self._tally.add(
            HostSample(
                time=record['time'],
                batch=record['batch'],
                phase=record['phase'],
                rss=usage.rss,
                children_rss=sample['children_rss'],
                cgroup_usage=sample.get('cgroup_usage'),
                cgroup_limit=sample.get('cgroup_limit'),
            )
        )

    def _charged_so_far(self, rss: int) -> dict[str, int]:
        """With what the phase that runs took: a process that is killed in it comes to no mark."""
        charged = dict(self._charged)
        phase, taken = self._phase, rss - self._last_rss
        return {**charged, phase: charged.get(phase, 0) + taken} if taken else charged

    def _record(self, event: str, **values: Any) -> dict[str, Any]:
        """Write a record with the time, batch and phase, and return it."""
        record = {'event': event, 'time': time.time(), 'batch': self._batch, 'phase': self._phase, **values}
        try:
            self._write(json.dumps(record))
        except OSError as error:
            raise WriteError(*error.args) from error
        return record
