"""Why a run was slow or ran out of memory: causes with evidence from several files, ranked by what they cost.

A cause costs a share, from 0 to 1, of what the run has: of its time, or of the memory that it may use. A leak that goes on
costs all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Optional, Union

from composer_memprof.analysis.memory.snapshot_report import DeviceReport
from composer_memprof.analysis.memory.summary import DeviceSummary, PlaceSummary, SnapshotSummary
from composer_memprof.analysis.run_report.readers import LoaderSettings, StepTimesFile
from composer_memprof.recorders.host.summary import HostSummary, Suspect
from composer_memprof.recorders.step_times.summary import DATA
from composer_memprof.vocabulary import ACTIVATION, DATALOADER, TEMPORARY, UNKNOWN

#: A cause of a smaller cost is none.
_LEAST = 0.1
#: Waiting less than this in each batch is the cost of the loop itself, in seconds.
_LEAST_WAIT = 0.001
#: No run has more batches.
_MOST_BATCHES = 1 << 40
#: Tensors of this share of the peak are large; together they are a cause from that share on. More of a line are layers'.
_LARGE_TENSOR, _MOST_OF_PEAK, _FEW = 0.06, 0.4, 3
_OF_A_BATCH = (ACTIVATION, TEMPORARY, UNKNOWN)
#: A leak that fills this share of memory within this many batches is a cause.
_LEAK_SHARE, _LEAK_BATCHES = 0.01, 100_000


@dataclass(frozen=True)
class Waiting:
    """The training waits for data.

    Args:
        rank (int): the rank that waits longest.
        cost (float): the share of the time.
        seconds (float): of a typical batch, spent waiting.
        batch (float): seconds of a typical batch.
        loader (LoaderSettings, optional): how it loads; None if that is not known.
    """

    kind: ClassVar[str] = 'waiting'
    rank: int
    cost: float
    seconds: float
    batch: float
    loader: Optional[LoaderSettings]


@dataclass(frozen=True)
class DeviceLeak:
    """A place in the code of which each batch leaves memory allocated.

    Args:
        rank (int): the rank on which it grows fastest.
        cost (float): 1, or less if it would take very long to fill the memory; the share of memory that ran out.
        per_batch (int): bytes more after each batch.
        total (int): bytes by the end of the recording.
        unit (str): what a batch is called.
        at (list[str]): the lines that allocate, innermost first.
        left (int, optional): the batches until the memory is full; None if that is not known, or it is full.
    """

    kind: ClassVar[str] = 'device_leak'
    rank: int
    cost: float
    per_batch: int
    total: int
    unit: str
    at: list[str]
    left: Optional[int]


@dataclass(frozen=True)
class LargeTensors:
    """A few tensors took most of the memory that ran out, as logits and their copies do.

    Args:
        rank (int): the rank that ran out first.
        cost (float): their share of the peak.
        bytes (int): of all of them.
        tensors (int): how many they are.
        places (list[PlaceSummary]): the lines that allocate them, largest first.
    """

    kind: ClassVar[str] = 'large_tensors'
    rank: int
    cost: float
    bytes: int
    tensors: int
    places: list[PlaceSummary]


@dataclass(frozen=True)
class HostLeak:
    """Host memory grows with every batch.

    Args:
        rank (int): the rank on which it grows fastest.
        cost (float): 1, or less if it would take very long to fill the memory.
        suspect (Suspect): the process that grows.
        ranks (int): how many ranks grow.
        limit (int, optional): bytes at which the job is killed.
    """

    kind: ClassVar[str] = 'host_leak'
    rank: int
    cost: float
    suspect: Suspect
    ranks: int
    limit: Optional[int]


Cause = Union[Waiting, DeviceLeak, LargeTensors, HostLeak]


def causes(summaries: Mapping[int, SnapshotSummary], contents: Mapping[str, Mapping[int, Any]]) -> list[Cause]:
    """The causes that were found, the costliest first.

    Args:
        summaries (Mapping): the newest summary of a snapshot by rank.
        contents (Mapping): the newest content by callback and rank, as the readers return it.
    """
    found: list[Cause] = [
        *_device_leaks(summaries),
        *_large_tensors(summaries),
        *_host_leaks(contents.get('host_rss', {})),
        *_waiting(contents.get('step_times', {})),
    ]
    return sorted(found, key=lambda cause: -cause.cost)


def _waiting(files: Mapping[int, StepTimesFile]) -> Iterator[Waiting]:
    waits = {rank: _wait(file) for rank, file in files.items()}
    rank = max(waits, key=lambda rank: waits[rank], default=None)
    if rank is None:
        return
    batch = _typical(files[rank], 'total')
    if batch and waits[rank] >= max(_LEAST * batch, _LEAST_WAIT):
        yield Waiting(rank, min(waits[rank] / batch, 1.0), waits[rank], batch, files[rank].loader)


def _wait(file: StepTimesFile) -> float:
    """Seconds that a rank waits for its own data. In ``dataloader`` it also waits for the other ranks' data."""
    own = _typical(file, DATA)
    return min(own, _typical(file, DATALOADER)) if own else _typical(file, DATALOADER)


def _typical(file: StepTimesFile, part: str) -> float:
    """The mean without the longest, in which workers start."""
    times = file.seconds.get(part, {})
    if not 2 <= file.batches <= _MOST_BATCHES or not {'mean', 'max'} <= times.keys():
        return times.get('p50', 0.0)
    return max(times['mean'] * file.batches - times['max'], 0.0) / (file.batches - 1)


def _device_leaks(summaries: Mapping[int, SnapshotSummary]) -> Iterator[DeviceLeak]:
    found = []
    for rank, summary in summaries.items():
        for device in summary.devices:
            for growing in device.growing[:1]:
                cost = leak_cost(growing.per_batch, memory_of(device))
                if device.at_failure is not None and summary.oom is not None and growing.per_batch > 0:
                    cost = growing.total / max(device.at_failure.bytes, 1)
                if cost >= _LEAST:
                    free = None if device.memory is None else max(device.memory - device.allocated_at_end, 0)
                    left = None if free is None or summary.oom is not None else free // growing.per_batch
                    leak = DeviceLeak(
                        rank, cost, growing.per_batch, growing.total, device.growth_unit, growing.at, left
                    )
                    found.append(leak)
    yield from sorted(found, key=lambda leak: -leak.cost * leak.per_batch)[:1]


def _large_tensors(summaries: Mapping[int, SnapshotSummary]) -> Iterator[LargeTensors]:
    for rank, summary in summaries.items():
        device = summary.largest_device
        if summary.oom is None or device is None or device.peak.bytes <= 0:
            continue
        least = _LARGE_TENSOR * device.peak.bytes
        places = [
            place
            for place in device.holders
            if place.category in _OF_A_BATCH and place.blocks <= _FEW and place.bytes >= least * place.blocks
        ]
        total, tensors = sum(place.bytes for place in places), sum(place.blocks for place in places)
        if total >= _MOST_OF_PEAK * device.peak.bytes:
            yield LargeTensors(rank, total / device.peak.bytes, total, tensors, places)
            return


def memory_of(device: DeviceReport | DeviceSummary) -> int:
    """The memory that a device's peak is a part of: the device's, or the process's where the device is the host."""
    return device.memory or max(device.rss_peak or 0, device.peak.bytes)


def leak_cost(per_batch: float, memory: int) -> float:
    """1 for a leak that fills the memory within some thousand batches, less for a slower one, 0 if it never matters."""
    if per_batch <= 0 or memory <= 0 or per_batch * _LEAK_BATCHES < _LEAK_SHARE * memory:
        return 0.0
    return min(1.0, per_batch * _LEAK_BATCHES / 10 / memory)


def _host_leaks(files: Mapping[int, HostSummary]) -> Iterator[HostLeak]:
    growing = {rank: file for rank, file in files.items() if file.suspect is not None}
    rank = max(growing, key=lambda rank: growing[rank].suspect.growth.per_batch, default=None)  # type: ignore[union-attr]
    if rank is None:
        return
    file = growing[rank]
    assert file.suspect is not None
    cost = leak_cost(file.suspect.growth.per_batch, file.limit or file.rss_peak)
    if cost >= _LEAST:
        yield HostLeak(rank, cost, file.suspect, len(growing), file.limit)
