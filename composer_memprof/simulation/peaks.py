"""What a process on a simulated GPU leaves for the command that started it: its peaks, and where its snapshot is."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Optional

#: The folder for snapshots (none: nothing is recorded), the folder for these files, and how many steps are run (0: all).
FOLDER_VARIABLE = 'COMPOSER_MEMPROF_SIMULATION'
PEAKS_VARIABLE = 'COMPOSER_MEMPROF_SIMULATION_PEAKS'
STEPS_VARIABLE = 'COMPOSER_MEMPROF_SIMULATION_STEPS'
_PEAKS, _BEGUN = '.json', '.begun'


@dataclasses.dataclass(frozen=True)
class DevicePeak:
    """The most that one device held at once, in bytes, by the statistics of torch's allocator.

    Attributes:
        device: its index.
        allocated: in blocks.
        reserved: taken from the device for them.
    """

    device: int
    allocated: int
    reserved: int


@dataclasses.dataclass(frozen=True)
class Moment:
    """Where in a training: ``module`` is the dotted name of the one that runs, ``''`` for none of the model's."""

    batch: int
    phase: str
    module: str


@dataclasses.dataclass(frozen=True)
class ProcessPeaks:
    """What one process used.

    Attributes:
        devices: those that were used.
        steps: how often the first optimizer stepped.
        host: the most resident memory of the process, in bytes.
        workers: the private memory of its DataLoader workers, in bytes.
        worker_count: how many they are.
        shortages: how often device memory ran out.
        ran_out: when it did so the last time; None if it did not, or the model is not known.
        out_of_memory: torch's message where nobody caught the error, else ``''``.
        snapshot: the memory snapshot, if one was recorded.
    """

    devices: list[DevicePeak]
    steps: int
    host: int
    workers: int
    worker_count: int
    shortages: int
    ran_out: Optional[Moment]
    out_of_memory: str
    snapshot: Optional[str]

    def write(self, folder: Path) -> None:
        """Write it as this process's file in ``folder``."""
        path = folder / f'{os.getpid()}{_PEAKS}'
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding='utf-8')


def note_begin(folder: Path) -> None:
    """Note that this process uses the device: it may not come to its end."""
    (folder / f'{os.getpid()}{_BEGUN}').touch()


def read_peaks(folder: Path) -> tuple[list[ProcessPeaks], int]:
    """What the processes left in ``folder``, the one that reserved most first, and how many left nothing."""
    found = []
    for path in sorted(folder.glob(f'*{_PEAKS}')):
        values: dict[str, Any] = json.loads(path.read_text(encoding='utf-8'))
        values['devices'] = [DevicePeak(**each) for each in values['devices']]
        values['ran_out'] = values['ran_out'] and Moment(**values['ran_out'])
        found.append(ProcessPeaks(**values))
    begun = len(list(folder.glob(f'*{_BEGUN}')))
    return sorted(found, key=lambda peaks: -max((each.reserved for each in peaks.devices), default=0)), begun - len(
        found
    )
