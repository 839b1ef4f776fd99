"""What a process on a simulated GPU leaves for the command that started it: its peaks, and where its snapshot is."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Optional

from composer_memprof.simulation.step_time import StepTime

#: What is asked of the process, as JSON.
_ASKED_VARIABLE = 'COMPOSER_MEMPROF_SIMULATION'
_PEAKS, _BEGUN = '.json', '.begun'
#: The end of a file's name until it is whole.
UNFINISHED = '.unfinished'
#: The end of the name of a process's trace.
TRACE = '.trace'


@dataclasses.dataclass(frozen=True)
class Asked:
    """What the command asks of each process that it starts.

    Attributes:
        peaks: the folder for these files.
        folder: for snapshots; None if nothing is recorded.
        steps: of the first optimizer; before the next one the process ends. 0 for all of them.
        with_evaluation: also wait for an evaluation and a checkpoint.
        deadline: when the process is ended, in seconds since 1970; 0 for never.
        keeps_recording: whether the script's own recording gives way to that of the simulation.
        traces: whether the step that is timed is also recorded, for a trace.
    """

    peaks: Path
    folder: Optional[Path]
    steps: int
    with_evaluation: bool
    deadline: float
    keeps_recording: bool
    traces: bool = False

    def as_environment(self) -> dict[str, str]:
        """The variable that tells it to a process."""
        return {_ASKED_VARIABLE: json.dumps(dataclasses.asdict(self), default=str)}


def asked_of_this_process() -> Optional[Asked]:
    """What is asked of this process; None if it is no command's.

    >>> asked_of_this_process() is None
    True
    """
    text = os.environ.get(_ASKED_VARIABLE)
    if not text:
        return None
    values: dict[str, Any] = json.loads(text)
    folder = values.pop('folder')
    return Asked(**{**values, 'peaks': Path(values['peaks'])}, folder=Path(folder) if folder else None)


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
        rank: of the process, and ``ranks``, how many there are.
        backwards: how often backward ran.
        ended_early: whether it was ended because enough was seen.
        evaluated: whether the model was evaluated after the first step, where that was asked.
        saved: whether a checkpoint was saved after the first step, where that was asked.
        growth: bytes of a device that each step keeps, where it was ended early; 0 if memory does not grow.
        time: of a step on the device; None if it is not known.
        trace: the file with the trace of that step, if it was asked for.
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
    rank: int
    ranks: int
    backwards: int
    ended_early: bool
    evaluated: bool
    saved: bool
    growth: int = 0
    time: Optional[StepTime] = None
    trace: Optional[str] = None

    def write(self, folder: Path) -> None:
        """Write it as this process's file in ``folder``."""
        path = folder / f'{os.getpid()}{_PEAKS}'
        unfinished = path.with_suffix(UNFINISHED)
        unfinished.write_text(json.dumps(dataclasses.asdict(self)), encoding='utf-8')
        unfinished.replace(path)


def note_begin(folder: Path) -> None:
    """Note that this process uses the device: it may not come to its end."""
    (folder / f'{os.getpid()}{_BEGUN}').touch()


def read_peaks(folder: Path) -> tuple[list[ProcessPeaks], int]:
    """What the processes left in ``folder``, the one that reserved most first, and how many left nothing."""
    found = []
    for path in sorted(folder.glob(f'*{_PEAKS}')):
        values: dict[str, Any] = json.loads(path.read_text(encoding='utf-8'))
        values['devices'] = [DevicePeak(**each) for each in values['devices']]
        values['time'] = values['time'] and StepTime(**values['time'])
        values['ran_out'] = values['ran_out'] and Moment(**values['ran_out'])
        found.append(ProcessPeaks(**values))
    begun = len(list(folder.glob(f'*{_BEGUN}')))
    return sorted(found, key=lambda peaks: -max((each.reserved for each in peaks.devices), default=0)), begun - len(
        found
    )
