"""What was allocated at the peak, by call stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.snapshot_file import ALLOC, FREE_COMPLETED, DeviceHistory, Frame, Snapshot, Stack

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
    """Bytes allocated before the first event and after each: int64, one more than there are events.

    Worked back from what is left at the end, since a history may have lost its beginning.
    """
    change = np.where(history.action == ALLOC, history.size, 0) - np.where(
        history.action == FREE_COMPLETED, history.size, 0
    )
    at_end = sum(block.size for block in history.blocks)
    return at_end - change.sum() + np.concatenate([[0], np.cumsum(change)])


def _peak(history: DeviceHistory, stacks: Sequence[Stack]) -> Peak:
    allocated = allocated_over_time(history)
    count = int(allocated.argmax())  # events up to the peak
    times = history.time_us
    live, unseen = _live_after(history, count)
    by_frames: dict[Stack, list[int]] = {}
    for size, stack in live:
        by_frames.setdefault(_own_frames(stacks[stack]), []).append(size)
    holders = [Holder(sum(sizes), len(sizes), list(frames)) for frames, sizes in by_frames.items()]
    return Peak(
        device=history.device,
        bytes=int(allocated[count]),
        event=count,
        events=len(history.action),
        time_us=int(times[count - 1] - times[0]) if count and times[0] >= 0 else None,
        allocated_before=unseen,
        reserved_at_end=history.reserved,
        holders=sorted(holders, key=lambda holder: -holder.bytes),
    )


def _live_after(history: DeviceHistory, count: int) -> tuple[list[tuple[int, int]], int]:
    """The blocks (size, stack) that are allocated after ``count`` events, and the bytes of those allocated before all."""
    live: dict[int, tuple[int, int]] = {}
    columns = (history.action.tolist(), history.address.tolist(), history.size.tolist(), history.stack.tolist())
    events = list(zip(*columns))
    for action, address, size, stack in events[:count]:
        if action == ALLOC:
            live[address] = (size, stack)
        elif action == FREE_COMPLETED:
            live.pop(address, None)
    allocated_again: set[int] = {address for action, address, _, _ in events if action == ALLOC}
    before = [(block.size, block.stack) for block in history.blocks if block.address not in allocated_again]
    # What was there before, and is not at the end, is known from its release alone, and so without a stack.
    born: set[int] = set()
    for position, (action, address, size, _) in enumerate(events):
        if action == ALLOC:
            born.add(address)
        elif action == FREE_COMPLETED and address not in born:
            born.add(address)
            if position >= count:
                before.append((size, 0))
    return [*live.values(), *before], sum(size for size, _ in before)


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
