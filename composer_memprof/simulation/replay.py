"""What another setting of the allocator would have changed: a recording is replayed on torch's own allocator."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.blocks.lifetimes import lifetimes
from composer_memprof.analysis.run_report.advice.kinds import Advice, in_order
from composer_memprof.analysis.run_report.report import RunReport
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.analysis.snapshot.model import DeviceHistory
from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError
from composer_memprof.artifacts.writing.temporary_folders import temporary_folder
from composer_memprof.messages import log_error
from composer_memprof.simulated_gpu.building import CannotSimulateError
from composer_memprof.simulated_gpu.devices import device_by_hand
from composer_memprof.simulated_gpu.environment import environment_with

#: Longer recordings are not replayed: it takes some ten microseconds an event.
_MOST_EVENTS = 500_000
#: A replay that does not reserve what the recording did, up to this share, says nothing about other settings.
_ALIKE = 0.02
#: A setting that frees less than this share is not advised.
_WORTHWHILE = 0.02
_SECONDS = 40.0
_SETTINGS = 'PYTORCH_CUDA_ALLOC_CONF'


def with_replayed_advice(report: RunReport) -> RunReport:
    """The report with what each setting of the allocator frees found by a replay, where that can be done here."""
    device = None if report.lead is None else report.lead.report.largest_device
    if report.lead is None or device is None or not any(each.setting for each in report.advice):
        return report
    try:
        snapshot = load_snapshot(report.lead.path)
        history = next(history for history in snapshot.devices if history.device == device.device)
        found = [_replayed(each, history, snapshot.settings, device.reserved_peak or 0) for each in report.advice]
    except (CannotSimulateError, SnapshotError, OSError, ValueError, subprocess.SubprocessError):
        log_error('the allocations could not be replayed')
        return report
    kept = [each for each in found if each is not None]
    return dataclasses.replace(report, advice=in_order(kept))


def _replayed(advice: Advice, history: DeviceHistory, settings: dict[str, str], recorded: int) -> Optional[Advice]:
    if not advice.setting or len(history.action) > _MOST_EVENTS:
        return advice
    before = settings.get(_SETTINGS, '')
    with (
        _events(history) as path,
        _replay(path, before, recorded) as first,
        _replay(path, advice.setting, recorded) as second,
    ):
        reserved, changed = map(_reserved, (first, second))
    if abs(reserved - recorded) > _ALIKE * recorded:
        return dataclasses.replace(advice, frees=None)  # such as with several streams: what it frees is not known
    frees = reserved - changed
    return dataclasses.replace(advice, frees=frees, replayed=True) if frees > _WORTHWHILE * recorded else None


@contextlib.contextmanager
def _events(history: DeviceHistory) -> Iterator[Path]:
    """A file with the allocations and frees of a recording; those from before it come first, by address."""
    lives = lifetimes(history)
    number = np.flatnonzero(lives.completed >= 0)
    freed = number[lives.completed[number] < lives.events]
    order = np.concatenate([lives.start[number], lives.completed[freed]])
    block = np.concatenate([number, freed])[np.argsort(order, kind='stable')]
    with temporary_folder('replay') as folder:
        path = folder / 'events.npz'
        np.savez(path, block=block, size=np.maximum(lives.requested, 1))
        yield path


@contextlib.contextmanager
def _replay(events: Path, settings: str, recorded: int) -> Iterator[subprocess.Popen[str]]:
    """A process that replays the events, on a GPU with more memory than was reserved."""
    device = device_by_hand(f'{2 * recorded // 10**9 + 80}GB', '9.0')
    environment = {**environment_with(device), _SETTINGS: settings}
    command = [sys.executable, '-m', 'composer_memprof.simulation.replaying', str(events)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _reserved(process: subprocess.Popen[str]) -> int:
    """What the process printed.

    Raises:
        ValueError: if it printed something else, as after an error.
        subprocess.TimeoutExpired: if it took too long.
    """
    output: Optional[str] = process.communicate(timeout=_SECONDS)[0]
    return int(json.loads(output or '')['reserved'])
