"""The ``.summary.json`` beside a snapshot: what happened, in at most 4096 bytes. One type, one writer, one reader."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from composer_memprof.analysis.memory.findings.attribution import PlaceShare
from composer_memprof.analysis.memory.findings.failure import OutOfMemoryEvent
from composer_memprof.analysis.memory.findings.growth import GrowingPlace
from composer_memprof.analysis.memory.findings.peak import Peak
from composer_memprof.analysis.memory.snapshot_report import DeviceReport, SnapshotReport, report_on
from composer_memprof.analysis.module_names import sums_by_layer
from composer_memprof.analysis.snapshot.model import Frame, Meta, Snapshot
from composer_memprof.analysis.typed_json import read_json
from composer_memprof.vocabulary import PHASES

#: Raised when a key changes its meaning. A summary without a version has version 1.
VERSION = 1
#: The largest file that is written, and the largest that is read, since a newer version may write more.
_MOST_BYTES, _MOST_BYTES_READ = 4096, 1 << 20
#: Most places, frames of a place, phases, devices, bytes of a text, and modules.
_PLACES, _FRAMES, _PHASES, _DEVICES, _TEXT, _WHOLE = 10, 2, len(PHASES), 8, 300, 3
#: The allocator's settings that a summary has.
_SETTINGS = ('PYTORCH_CUDA_ALLOC_CONF', 'expandable_segments', 'max_split_size', 'garbage_collection_threshold')


@dataclass(frozen=True)
class OutOfMemorySummary:
    """The fields of :class:`OutOfMemoryEvent`, with the frames in ``asked`` as text: ``train.py:7 step``."""

    device: Optional[int]
    requested: Optional[int]
    allocated: Optional[int]
    reserved: Optional[int]
    free: Optional[int]
    total: Optional[int]
    message: Optional[str]
    events: Optional[int]
    batch: Optional[int]
    phase: str
    asked: list[str]


@dataclass(frozen=True)
class PeakSummary:
    """The fields of :class:`Peak`."""

    bytes: int
    event: int
    events: int
    time_us: Optional[int]
    batch: Optional[int]
    phase: str
    allocated_before: int


@dataclass(frozen=True)
class FailureSummary:
    """The memory that was allocated when the training failed; ``categories`` are bytes by category."""

    bytes: int
    batch: Optional[int]
    phase: str
    categories: dict[str, int]


@dataclass(frozen=True)
class PlaceSummary:
    """A place in the code and its bytes at the peak; ``at`` are its frames, or the module that ran."""

    bytes: int
    blocks: int
    category: str
    at: list[str]


@dataclass(frozen=True)
class GrowthSummary:
    """A place in the code that grows with every batch, by ``per_batch`` bytes, to ``total`` at the end of the last one.

    ``kept_by`` says what keeps it, in words.
    """

    per_batch: int
    at: list[str]
    total: int = 0
    kept_by: str = ''


@dataclass(frozen=True)
class DeviceSummary:
    """The largest parts of a :class:`DeviceReport`.

    ``growing`` has the fastest of the ``growing_places``; ``growing_bytes`` and ``growing_per_batch`` are sums over all.
    ``categories`` and ``modules``, equal layers summed, are bytes at the peak; ``phases`` are the most bytes in each phase.
    """

    device: int
    peak: PeakSummary
    categories: dict[str, int]
    at_failure: Optional[FailureSummary]
    holders: list[PlaceSummary]
    allocated_at_end: int
    reserved_peak: Optional[int]
    idle_at_peak: Optional[int]
    largest_hole: Optional[int]
    steady: Optional[bool]
    growing: list[GrowthSummary]
    rss_peak: Optional[int] = None
    memory: Optional[int] = None
    growth_unit: str = 'batch'
    modules: dict[str, int] = field(default_factory=dict)
    phases: dict[str, int] = field(default_factory=dict)
    growing_places: int = 0
    growing_bytes: int = 0
    growing_per_batch: int = 0


@dataclass(frozen=True)
class SnapshotSummary:
    """The summary of a snapshot. ``devices`` has those with the largest peaks, ``devices_left_out`` counts the rest.

    ``whole`` has the largest modules that FSDP left whole, with the bytes of their parameters.
    """

    meta: Meta
    error: str
    oom: Optional[OutOfMemorySummary]
    devices: list[DeviceSummary]
    devices_left_out: int
    version: int = VERSION
    settings: dict[str, str] = field(default_factory=dict)
    whole: dict[str, int] = field(default_factory=dict)

    @property
    def largest_device(self) -> Optional[DeviceSummary]:
        """The device with the largest peak; None if nothing was recorded."""
        return max(self.devices, key=lambda device: device.peak.bytes, default=None)

    @property
    def peak_bytes(self) -> int:
        """The largest peak of any device; 0 if nothing was recorded."""
        return 0 if self.largest_device is None else self.largest_device.peak.bytes

    def as_dict(self) -> dict[str, Any]:
        """The keys and values of the file."""
        return dataclasses.asdict(self)


# -- writing --------------------------------------------------------------------------------------------------------


def write_summary(snapshot: Snapshot, path: Path) -> None:
    """Write the summary of a snapshot to ``path``."""
    path.write_text(_as_json(summary_of(report_on(snapshot))), encoding='utf-8')


def summary_of(report: SnapshotReport) -> SnapshotSummary:
    """The summary of a report, at most 4096 bytes as JSON: with many devices or long names, lists get shorter."""
    devices = sorted(report.devices, key=lambda device: -device.peak.bytes)
    for most, places in ((_DEVICES, _PLACES), (_DEVICES, 5), (4, 5), (4, 3), (2, 3), (1, 3), (1, 1), (1, 0)):
        summary = SnapshotSummary(
            meta=Meta(*map(_short, dataclasses.astuple(report.meta))),
            error=_short(report.error),
            oom=None if report.oom is None else _oom(report.oom),
            devices=[_device(device, places) for device in devices[:most]],
            devices_left_out=max(len(devices) - most, 0),
            settings={name: _short(report.settings[name]) for name in _SETTINGS if name in report.settings},
            whole={_short(name): size for name, size in itertools.islice(report.whole.items(), _WHOLE)},
        )
        if len(_as_json(summary).encode()) <= _MOST_BYTES:
            break
    return summary


def _as_json(summary: SnapshotSummary) -> str:
    return json.dumps(summary.as_dict(), separators=(',', ':'))


def _device(device: DeviceReport, places: int) -> DeviceSummary:
    peak, lost = device.peak, device.fragmentation
    return DeviceSummary(
        device=device.device,
        peak=PeakSummary(
            bytes=peak.bytes,
            event=peak.event,
            events=peak.events,
            time_us=peak.time_us,
            batch=peak.batch,
            phase=_short(peak.phase),
            allocated_before=peak.allocated_before,
        ),
        categories=_categories(peak),
        at_failure=None if device.at_failure is None else _failure(device.at_failure),
        holders=[
            PlaceSummary(share.bytes, share.blocks, share.category, _at(share)) for share in peak.holders[:places]
        ],
        allocated_at_end=device.allocated_at_end,
        reserved_peak=device.reserved_peak,
        idle_at_peak=None if lost is None else lost.idle,
        largest_hole=None if lost is None else lost.largest_hole,
        steady=device.growth.steady,
        growing=[
            GrowthSummary(place.per_batch, _growing_at(place), place.at_end[-1], _short(place.kept_by))
            for place in device.growth.growing[: min(places, 3)]
        ],
        growing_places=len(device.growth.growing),
        growing_bytes=sum(place.at_end[-1] for place in device.growth.growing),
        growing_per_batch=sum(place.per_batch for place in device.growth.growing),
        rss_peak=device.rss_peak,
        memory=device.memory,
        growth_unit=device.growth.unit,
        modules=_modules(peak, places),
        phases={_short(name): size for name, size in itertools.islice(device.phase_peaks.items(), _PHASES)},
    )


def _failure(found: Peak) -> FailureSummary:
    return FailureSummary(found.bytes, found.batch, _short(found.phase), _categories(found))


def _categories(peak: Peak) -> dict[str, int]:
    return {share.category: share.bytes for share in peak.categories}


def _modules(peak: Peak, most: int) -> dict[str, int]:
    """The bytes of the largest modules, with equal layers summed."""
    by_layer = sums_by_layer((share.module, share.bytes) for share in peak.modules)
    return {_short(name): int(size) for name, size in itertools.islice(by_layer.items(), most)}


def _oom(oom: OutOfMemoryEvent) -> OutOfMemorySummary:
    values = {field.name: _short(getattr(oom, field.name)) for field in dataclasses.fields(oom)}
    return OutOfMemorySummary(**{**values, 'asked': _lines(oom.asked)})


def _at(place: PlaceShare) -> list[str]:
    lines = _lines([*([] if place.within is None else [place.within]), *place.frames])
    return lines or ([_short(place.module)] if place.module else [])


def _growing_at(place: GrowingPlace) -> list[str]:
    """The user's line comes first: that is where a leak ends."""
    return _lines([*place.frames, *([] if place.within is None else [place.within])])


def _lines(frames: list[Frame]) -> list[str]:
    """``train.py:7 step``, with the last part of the path."""
    return [
        _short(str(Frame(os.path.basename(frame.filename)[-40:], frame.line, frame.name[:40])))
        for frame in frames[:_FRAMES]
    ]


def _short(value: Any) -> Any:
    """A text is cut to 300 bytes of JSON."""
    while isinstance(value, str) and len(json.dumps(value)) > _TEXT:
        value = value[: min(len(value) * 3 // 4, _TEXT)]
    return value


# -- reading --------------------------------------------------------------------------------------------------------


def read_summary(path: Path) -> SnapshotSummary:
    """Read a summary from a file that is not trusted. Unknown keys, of a newer version, are ignored.

    Raises:
        FormatError: if it is not a summary.
        OSError: if it can't be read.
    """
    return read_json(SnapshotSummary, path, 'a summary', _MOST_BYTES_READ)
