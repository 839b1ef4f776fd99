"""An answer in about 4 KiB, to stand beside its snapshot: enough to say what happened without the snapshot."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from composer_memprof.analysis.memory.attribution import PlaceShare
from composer_memprof.analysis.memory.growth import GrowingPlace
from composer_memprof.analysis.memory.peak import Peak
from composer_memprof.analysis.memory.snapshot_report import DeviceReport, SnapshotReport, report_on
from composer_memprof.analysis.snapshot.model import Frame, Snapshot

_LARGEST, _TOP, _FRAMES, _DEVICES, _TEXT = 4096, 10, 2, 8, 300


def summary_of(answer: SnapshotReport) -> dict[str, Any]:
    """Peaks and their places, the largest stacks and categories, the end of memory: JSON of 4096 bytes at most.

    With many devices or long names the lists get shorter; ``devices_left_out`` says how many are not there.
    """
    order = sorted(answer.devices, key=lambda device: -device.peak.bytes)
    for devices, top in ((_DEVICES, _TOP), (_DEVICES, 5), (4, 5), (4, 3), (2, 3), (1, 3), (1, 1)):
        summary = {
            'meta': {key: _short(value) for key, value in dataclasses.asdict(answer.meta).items()},
            'error': _short(answer.error),
            'oom': None if answer.oom is None else _oom(answer),
            'devices': [_device(device, top) for device in order[:devices]],
            'devices_left_out': max(len(order) - devices, 0),
        }
        if len(json.dumps(summary).encode()) <= _LARGEST:
            break
    return summary


def _device(device: DeviceReport, top: int) -> dict[str, Any]:
    peak, lost = device.peak, device.fragmentation
    shown = ('bytes', 'event', 'events', 'time_us', 'batch', 'phase', 'allocated_before')
    return {
        'device': device.device,
        'peak': {key: _short(getattr(peak, key)) for key in shown},
        'categories': {share.category: share.bytes for share in peak.categories},
        'at_failure': None if device.at_failure is None else _failed(device.at_failure),
        'holders': [
            {'bytes': holder.bytes, 'blocks': holder.blocks, 'category': holder.category, 'at': _at(holder)}
            for holder in peak.holders[:top]
        ],
        'allocated_at_end': device.allocated_at_end,
        'reserved_peak': device.reserved_peak,
        'idle_at_peak': None if lost is None else lost.idle,
        'largest_hole': None if lost is None else lost.largest_hole,
        'steady': device.growth.steady,
        'growing': [{'per_batch': place.per_batch, 'at': _at(place)} for place in device.growth.growing[: min(top, 3)]],
    }


def _failed(moment: Peak) -> dict[str, Any]:
    shares = {share.category: share.bytes for share in moment.categories}
    return {'bytes': moment.bytes, 'batch': moment.batch, 'phase': _short(moment.phase), 'categories': shares}


def _oom(answer: SnapshotReport) -> dict[str, Any]:
    oom = answer.oom
    assert oom is not None
    kept = {key: _short(value) for key, value in dataclasses.asdict(oom).items() if key != 'asked'}
    return {**kept, 'asked': _lines(oom.asked)}


def _at(place: PlaceShare | GrowingPlace) -> list[str]:
    lines = _lines([*([] if place.within is None else [place.within]), *place.frames])
    return lines or ([_short(place.module)] if isinstance(place, PlaceShare) and place.module else [])


def _lines(frames: list[Frame]) -> list[str]:
    """``train.py:7 step``: the last part of the path alone."""
    return [
        _short(f'{os.path.basename(frame.filename)[-40:]}:{frame.line} {frame.name[:40]}') for frame in frames[:_FRAMES]
    ]


def _short(value: Any) -> Any:
    """A text is cut to what takes 300 bytes as JSON."""
    while isinstance(value, str) and len(json.dumps(value)) > _TEXT:
        value = value[: min(len(value) * 3 // 4, _TEXT)]
    return value


def write_summary(snapshot: Snapshot, path: Path) -> None:
    """Write the summary of a snapshot's answer."""
    path.write_text(json.dumps(summary_of(report_on(snapshot))), encoding='utf-8')
