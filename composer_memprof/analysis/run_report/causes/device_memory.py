"""Causes in the memory of devices: leaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from composer_memprof.analysis.memory.snapshot_report import DeviceReport
from composer_memprof.analysis.memory.summary import DeviceSummary, SnapshotSummary
from composer_memprof.analysis.run_report.causes.kinds import LEAST, DeviceLeak, leak_cost
from composer_memprof.vocabulary import BOUNDED


def device_leaks(summaries: Mapping[int, SnapshotSummary]) -> Iterator[DeviceLeak]:
    """The fastest leak of all ranks."""
    found = [
        leak
        for rank, summary in summaries.items()
        for device in summary.devices
        if device.growing and not _is_bounded(device) and (leak := _device_leak(rank, summary, device)).cost >= LEAST
    ]
    yield from sorted(found, key=lambda leak: -leak.cost * leak.per_batch)[:1]


def _is_bounded(device: DeviceSummary) -> bool:
    """True if a container of limited length keeps what grows: it fills up, and stops."""
    return any(BOUNDED in place.kept_by for place in device.growing)


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
