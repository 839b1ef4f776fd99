"""What a process on a simulated GPU leaves for the command that started it: its peaks, and where its snapshot is."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Optional

#: The folder for these files and for snapshots, and how many steps are run (0: all of them).
FOLDER_VARIABLE, STEPS_VARIABLE = 'COMPOSER_MEMPROF_SIMULATION', 'COMPOSER_MEMPROF_SIMULATION_STEPS'
_PATTERN = 'process-*.json'


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
class ProcessPeaks:
    """What one process used.

    Attributes:
        devices: those that were used.
        steps: how often the first optimizer stepped.
        host: the most resident memory of the process, in bytes.
        out_of_memory: torch's message where device memory ran out and nobody caught the error, else ``''``.
        snapshot: the memory snapshot, if one was recorded.
    """

    devices: list[DevicePeak]
    steps: int
    host: int
    out_of_memory: str
    snapshot: Optional[str]

    def write(self, folder: Path) -> None:
        """Write it as this process's file in ``folder``."""
        path = folder / _PATTERN.replace('*', str(os.getpid()))
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding='utf-8')


def read_peaks(folder: Path) -> list[ProcessPeaks]:
    """What the processes left in ``folder``, the one that reserved most first. The files are removed."""
    found = []
    for path in sorted(folder.glob(_PATTERN)):
        values: dict[str, Any] = json.loads(path.read_text(encoding='utf-8'))
        found.append(ProcessPeaks(**{**values, 'devices': [DevicePeak(**each) for each in values['devices']]}))
        path.unlink()
    return sorted(found, key=lambda peaks: -max((each.reserved for each in peaks.devices), default=0))
