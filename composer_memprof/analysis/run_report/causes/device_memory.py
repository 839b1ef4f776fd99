"""Causes in the memory of devices: leaks."""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from composer_memprof.analysis.memory.snapshot_report import DeviceReport
from composer_memprof.analysis.memory.summary import DeviceSummary, GrowthSummary, SnapshotSummary
from composer_memprof.analysis.run_report.causes.kinds import LEAST, DeviceLeak, LeakBetweenWindows, leak_cost
from composer_memprof.analysis.run_report.readers import BetweenWindowsFile
from composer_memprof.recorders.host.summary import HostSummary
from composer_memprof.recorders.host.trend import FEWEST_BATCHES
from composer_memprof.vocabulary import AT_MOST

#: A leak of fewer bytes in a recording, of which nothing was found that keeps it, may be what a loop holds for some batches.
_UNEXPLAINED = 1 << 20
#: A leak on the host has stopped if the process has taken less than this share of it since, where it were so many bytes.
_STOPPED, _LEAST_SINCE = 0.3, 16 << 20
#: Growth between windows goes on if this share of it came in the later half of the batches.
_LATELY = 0.25


def device_leaks(
    summaries: Mapping[int, SnapshotSummary], host: Mapping[int, HostSummary] = MappingProxyType({})
) -> Iterator[DeviceLeak]:
    """The fastest leak of all ranks.

    Args:
        summaries (Mapping): of snapshots, by rank.
        host (Mapping): the recordings of host memory, by rank: a cache that has filled up since is no leak.
    """
    found = [
        leak
        for rank, summary in summaries.items()
        for device in map(_without_limited, summary.devices)
        if device.growing
        and (leak := _device_leak(rank, summary, device)).cost >= LEAST
        and (leak.kept_by or leak.total >= _UNEXPLAINED)
        and not (leak.on_host and rank in host and _has_stopped(leak.per_batch, host[rank]))
    ]
    yield from sorted(found, key=lambda leak: -leak.cost * leak.per_batch)[:1]


def leaks_between_windows(files: Mapping[int, BetweenWindowsFile]) -> Iterator[LeakBetweenWindows]:
    """The fastest growth outside of windows that goes on: of a known container, or on a GPU a clear trend.

    Args:
        files (Mapping): the newest look at what grows, by rank.
    """
    found = []
    for rank, file in files.items():
        batches, begin = file.end - file.begin, file.begin
        goes_on = batches >= FEWEST_BATCHES and file.grown_lately >= _LATELY * file.grown
        limit = _at_most(file.kept_by)
        if not goes_on or not (file.kept_by or (file.clear and not file.on_host)):
            continue
        grown, per_batch, memory = file.grown, file.per_batch or file.grown / batches, file.memory or file.size
        if file.kept_by:  # the process grows by other things, too
            begin = 0 if file.kept_by.endswith(f' of {file.more}') else begin  # all of it came since the training began
            grown, per_batch = file.bytes, file.bytes / (file.end - begin)
        if 0 < limit * per_batch <= (file.memory or sys.maxsize):
            continue  # it fills up
        cost = leak_cost(per_batch, memory)
        found.append(LeakBetweenWindows(rank, cost, per_batch, grown, begin, file.end, file.kept_by, file.on_host))
    found = [each for each in found if each.cost >= LEAST]
    yield from sorted(found, key=lambda leak: -leak.cost * leak.per_batch)[:1]


def _has_stopped(per_batch: int, file: HostSummary) -> bool:
    """True if the process has not grown by that in the later half of the batches, or by its trend."""
    samples = file.over_time
    if not samples.batch:
        return False
    whole = per_batch * (samples.batch[-1] - samples.batch[0])
    if file.growth is not None and whole >= 2 * _LEAST_SINCE and file.growth.high < _STOPPED * per_batch:
        return True
    middle = bisect_left(samples.batch, (samples.batch[0] + samples.batch[-1]) // 2)
    expected = per_batch * (samples.batch[-1] - samples.batch[middle])
    return expected >= _LEAST_SINCE and samples.rss[-1] - samples.rss[middle] < _STOPPED * expected


def _without_limited(device: DeviceSummary) -> DeviceSummary:
    """Without what is kept by a container with a limit: it fills up, and stops. Of the rest, what else is known to be kept.

    The rest may belong to what is in such a container, as the graph of a loss does.
    """
    limited = _limited(device)
    if not limited:
        return device
    growing = [place for place in device.growing if place.kept_by and place not in limited]
    return replace(
        device,
        growing=growing,
        growing_places=len(growing),
        growing_per_batch=sum(place.per_batch for place in growing),
        growing_bytes=sum(place.total for place in growing),
    )


def limited_growth(summaries: Mapping[int, SnapshotSummary]) -> dict[int, int]:
    """By rank of a training on a CPU, the bytes that containers with a limit take more with each batch."""
    return {
        rank: sum(place.per_batch for device in summary.devices for place in _limited(device))
        for rank, summary in summaries.items()
        if summary.meta.device == 'cpu'
    }


def _limited(device: DeviceSummary) -> list[GrowthSummary]:
    """The growing places whose memory a container with a limit keeps, with room for all that it holds at most."""
    most = device.memory or sys.maxsize  # the host's is not known
    return [place for place in device.growing if 0 < _at_most(place.kept_by) * place.per_batch <= most]


def _at_most(kept_by: str) -> int:
    """How many things the container that keeps them holds at most; 0 if it has no limit."""
    found = re.search(rf'{AT_MOST}(\d+)', kept_by)
    return int(found[1]) if found is not None else 0


def _device_leak(rank: int, summary: SnapshotSummary, device: DeviceSummary) -> DeviceLeak:
    """The places that grow, as one leak: what is kept may keep a whole graph."""
    first, ran_out = device.growing[0], summary.oom is not None
    per_batch, total = max(device.growing_per_batch, first.per_batch), max(device.growing_bytes, first.total)
    cost = leak_cost(per_batch, memory_of(device))
    if device.at_failure is not None and ran_out and per_batch > 0:
        cost = total / max(device.at_failure.bytes, 1)
    free = None if device.memory is None or ran_out else max(device.memory - device.allocated_at_end, 0)
    return DeviceLeak(
        rank=rank,
        cost=cost,
        per_batch=per_batch,
        total=total,
        unit=device.growth_unit,
        at=first.at,
        places=max(device.growing_places, 1),
        kept_by=next((place.kept_by for place in device.growing if place.kept_by), ''),
        left=None if free is None or per_batch <= 0 else free // per_batch,
        on_host=summary.meta.device == 'cpu',
    )


def memory_of(device: DeviceReport | DeviceSummary) -> int:
    """The memory that a device's peak is a part of: the device's, or the process's where the device is the host."""
    return device.memory or max(device.rss_peak or 0, device.peak.bytes)
