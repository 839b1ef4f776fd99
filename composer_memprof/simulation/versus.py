"""A simulated run against a real recording of the same command: the peaks, and the first event that differs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.blocks.frames import own_frames
from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.analysis.snapshot.model import ACTIONS, ALLOC, FREE_COMPLETED, DeviceHistory, Snapshot
from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError

#: Events that must be alike for the recording to be taken to begin there, and how many such places are tried.
_ALIKE, _MOST_PLACES = 32, 2000


@dataclasses.dataclass(frozen=True)
class Event:
    """One event of the allocator; ``size`` is in bytes, as requested, and ``line`` the user's that caused it."""

    action: str
    size: int
    line: str


@dataclasses.dataclass(frozen=True)
class Versus:
    """How a simulated run differs from a recording. Sizes are in bytes.

    Attributes:
        recording: the file.
        torch: that recorded it; ``''`` if it does not say.
        allocated: the recording's peak, as requested, and ``simulated_allocated``, the simulated one.
        reserved: the most that was reserved in the recording, and ``simulated_reserved``; None if it can't be told.
        events: how many allocations and frees of the recording were compared.
        same: how many of them are the same, from the first one on.
        begins: the number of the simulated event that the recording begins with.
        real: the first event of the recording that differs; None if none does, or it has ended.
        simulated: the simulated event in its place; None if the simulation has ended.
    """

    recording: str
    torch: str
    allocated: int
    simulated_allocated: int
    reserved: Optional[int]
    simulated_reserved: Optional[int]
    events: int
    same: int
    begins: int
    real: Optional[Event]
    simulated: Optional[Event]


@dataclasses.dataclass(frozen=True)
class Recording:
    """A real recording, read before the command runs, which may write a file of the same name."""

    path: str
    snapshot: Snapshot


def read_recording(path: Path) -> Recording:
    """Read a recording.

    Raises:
        ValueError: if it is no snapshot of a CUDA device, in one line.
    """
    try:
        snapshot = load_snapshot(path)
    except (OSError, SnapshotError) as error:
        raise ValueError(f'--versus={str(path)!r} cannot be read: {error}') from None
    if not any(len(_compared(history)) for history in snapshot.devices):
        raise ValueError(f'--versus={str(path)!r} has no events of the allocator')
    return Recording(str(path), snapshot)


def compare(recording: Recording, simulated: Path) -> Versus:
    """Compare a recording with the snapshot of a simulated run; each with the device that it has most events of."""
    ours = load_snapshot(simulated)
    (real_peak, real_reserved), (peak, reserved) = _peaks(recording.snapshot), _peaks(ours)
    theirs, mine = _busiest(recording.snapshot), _busiest(ours)
    their_rows, my_rows = _compared(theirs), _compared(mine)
    begins, same = _aligned(_keys(theirs, their_rows), _keys(mine, my_rows))
    real = _event(recording.snapshot, theirs, their_rows, same)
    return Versus(
        recording=recording.path,
        torch=recording.snapshot.meta.torch,
        allocated=real_peak,
        simulated_allocated=peak,
        reserved=real_reserved,
        simulated_reserved=reserved,
        events=len(their_rows),
        same=same,
        begins=begins,
        real=real,
        simulated=_event(ours, mine, my_rows, begins + same) if real else None,
    )


def _busiest(snapshot: Snapshot) -> DeviceHistory:
    return max(snapshot.devices, key=lambda history: len(history.action))


def _peaks(snapshot: Snapshot) -> tuple[int, Optional[int]]:
    """The most that was allocated, as requested, and reserved. How a block was rounded up only a snapshot of its time knows."""
    device = _busiest(snapshot).device
    found = next(each for each in report_on(snapshot).devices if each.device == device)
    return found.peak.requested, found.reserved_peak


def _compared(history: DeviceHistory) -> np.ndarray:
    """The rows of allocations and frees. Segments depend on what others hold of the device."""
    return np.flatnonzero(np.isin(history.action, (ALLOC, FREE_COMPLETED)))


def _keys(history: DeviceHistory, rows: np.ndarray) -> np.ndarray:
    """A number for each event, the same for the same action and size."""
    return history.size[rows] * 2 + (history.action[rows] == ALLOC)


def _aligned(real: np.ndarray, simulated: np.ndarray) -> tuple[int, int]:
    """Where in the simulated events the recording begins, and how many are the same from there on.

    >>> _aligned(np.array([5, 7, 9]), np.array([1, 5, 6, 5, 7, 8]))
    (3, 2)
    """
    places = np.arange(len(simulated))
    for ahead in range(min(_ALIKE, len(real))):
        alike = places[places + ahead < len(simulated)]
        alike = alike[simulated[alike + ahead] == real[ahead]]
        if not len(alike):
            break
        places = alike
    same = [(_same(real, simulated[place:]), -int(place)) for place in places[:_MOST_PLACES]]
    most, place = max(same, default=(0, 0))
    return -place, most


def _same(real: np.ndarray, simulated: np.ndarray) -> int:
    length = min(len(real), len(simulated))
    differ = np.flatnonzero(real[:length] != simulated[:length])
    return int(differ[0]) if len(differ) else length


def _event(snapshot: Snapshot, history: DeviceHistory, rows: np.ndarray, number: int) -> Optional[Event]:
    if number >= len(rows):
        return None
    row = rows[number]
    frames = own_frames(snapshot.stacks[history.stack[row]])
    line = frames[0].short() if frames else ''
    return Event(ACTIONS[history.action[row]], int(history.size[row]), line)
