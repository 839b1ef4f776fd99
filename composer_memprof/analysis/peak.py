"""What was allocated at the peak, by call stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.lifetimes import lifetimes
from composer_memprof.analysis.snapshot import DeviceHistory, Frame, Snapshot, Stack

#: Packages that call the user's code, or are called by all of it.
_FRAMEWORKS = ('torch', 'composer', 'torchmetrics', 'typer', 'click')
_INSTALLED = ('site-packages/', 'dist-packages/')
#: On a GPU the backward pass runs on torch's own threads, which have no Python frames.
_BACKWARD = Frame('torch', 0, 'backward (no Python frames)')


@dataclass(frozen=True)
class Holder:
    """A call stack and what it held at the peak. ``frames``: the user's own where there are any, innermost first."""

    bytes: int
    blocks: int
    frames: list[Frame]


@dataclass(frozen=True)
class Peak:
    """The most that was allocated at once on one device, in bytes.

    ``time_us`` is counted from the first event; None where the format has no times. ``allocated_before`` is the part
    of the peak that was allocated before the recording began.
    """

    device: int
    bytes: int
    event: int
    events: int
    time_us: Optional[int]
    allocated_before: int
    reserved_at_end: int
    holders: list[Holder]


def peaks(snapshot: Snapshot) -> list[Peak]:
    """The peak of each device."""
    return [_peak(history, snapshot.stacks) for history in snapshot.devices]


def allocated_over_time(history: DeviceHistory) -> np.ndarray:
    """Bytes allocated before the first event and after each: int64, one more than there are events."""
    return lifetimes(history).allocated()


def _peak(history: DeviceHistory, stacks: Sequence[Stack]) -> Peak:
    blocks = lifetimes(history)
    allocated = blocks.allocated()
    count = int(allocated.argmax())  # events up to the peak
    times = history.time_us
    live = blocks.allocated_after(count)
    by_frames: dict[Stack, list[int]] = {}
    for size, stack in zip(blocks.size[live].tolist(), blocks.stack[live].tolist()):
        by_frames.setdefault(_own_frames(stacks[stack]), []).append(size)
    holders = [Holder(sum(sizes), len(sizes), list(frames)) for frames, sizes in by_frames.items()]
    return Peak(
        device=history.device,
        bytes=int(allocated[count]),
        event=count,
        events=len(history.action),
        time_us=int(times[count - 1] - times[0]) if count and times[0] >= 0 else None,
        allocated_before=int(blocks.size[live][blocks.start[live] < 0].sum()),
        reserved_at_end=history.reserved,
        holders=sorted(holders, key=lambda holder: -holder.bytes),
    )


def _own_frames(stack: Stack) -> Stack:
    """The user's own frames, innermost first, at most three; failing those, of a library other than the frameworks."""
    python = [frame for frame in stack if frame.filename.endswith('.py') and not _is_standard_library(frame.filename)]
    own = [frame for frame in python if not any(place in frame.filename for place in _INSTALLED)]
    chosen = [frame for frame in own or python if not _is_framework(frame.filename)] or own or python
    if chosen:
        return tuple(chosen[:3])
    if any('autograd' in frame.name for frame in stack):
        return (_BACKWARD,)
    return stack[:3]


def _is_standard_library(filename: str) -> bool:
    return '/lib/python3' in filename and not any(place in filename for place in _INSTALLED)


def _is_framework(filename: str) -> bool:
    """Whether a file, by its path as such or below the packages' folder, belongs to one of the frameworks."""
    for place in _INSTALLED:
        filename = filename.rpartition(place)[2]
    return filename.startswith(tuple(f'{name}/' for name in _FRAMEWORKS))
