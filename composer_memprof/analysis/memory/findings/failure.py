"""The failures in a snapshot: their times, the sizes requested, and the memory of the device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.blocks.frames import own_frames, within_library
from composer_memprof.analysis.memory.blocks.phases import batch_and_phase, batch_and_phase_at_end
from composer_memprof.analysis.snapshot.model import OOM, DeviceHistory, Frame, OutOfMemory, Snapshot

#: The number of failed allocations of a device to report, the last ones: a program may try again and again.
_MOST = 5
#: The fields of an :class:`OutOfMemoryEvent` that a recorder may have noted.
_NUMBERS = ('device', 'requested', 'allocated', 'reserved', 'free', 'total', 'message')

#: Errors of CUDA and its libraries, which allocate beside torch's allocator and appear in no history.
_BESIDE_TORCH = re.compile(
    r'CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|CU(BLAS|DNN|SPARSE|SOLVER)_STATUS_ALLOC_FAILED|'
    r"Cuda failure \S* ?'?out of memory|HIP error: out of memory|hipErrorOutOfMemory",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class OutOfMemoryEvent:
    """An allocation that failed, sizes in bytes; None where a value is not known.

    Args:
        device (int, optional): index of the device.
        requested (int, optional): size of the allocation.
        allocated (int, optional): allocated on the device by this process.
        reserved (int, optional): reserved by this process's allocator.
        free (int, optional): free on the device.
        total (int, optional): size of the device's memory.
        message (str, optional): of the error.
        events (int, optional): number of events before it.
        batch (int, optional): the batch it is in.
        phase (str): the phase it is in, or ``''``.
        asked (list[Frame]): the frames that allocated, innermost first.
    """

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
    asked: list[Frame]


def failure_moment(snapshot: Snapshot, history: DeviceHistory) -> Optional[int]:
    """The number of events before the last allocation that failed, or all of them if another error ended the training.

    None if nothing failed.
    """
    out_of_memory = out_of_memory_moments(history)
    if len(out_of_memory) and (snapshot.oom is not None or not snapshot.error):
        return int(out_of_memory[-1])
    return len(history.action) if snapshot.error or snapshot.oom is not None else None


def ended_out_of_memory(snapshot: Snapshot) -> bool:
    """True if the snapshot was taken because memory ran out, in torch's allocator or beside it."""
    return snapshot.oom is not None or _beside_torch(snapshot)


def _beside_torch(snapshot: Snapshot) -> bool:
    return snapshot.oom is None and _BESIDE_TORCH.search(snapshot.error) is not None


def out_of_memory_moments(history: DeviceHistory) -> np.ndarray:
    """The number of events before each of the last allocations that failed, int64."""
    return np.flatnonzero(history.action == OOM)[-_MOST:]


def out_of_memory_events(
    snapshot: Snapshot, totals: Sequence[tuple[np.ndarray, Optional[np.ndarray]]]
) -> list[OutOfMemoryEvent]:
    """The allocations that failed, oldest first, the last five of a device. Training may have gone on after any of them.

    The last one may be of CUDA or one of its libraries, if the error says so.

    Args:
        snapshot (Snapshot): the snapshot.
        totals (Sequence): for each device the bytes allocated before the first event and after each, and the bytes
            reserved, or None if they are not known.
    """
    found = [
        (int(history.time_us[event]), _as_in_history(snapshot, history, event, allocated, reserved))
        for history, (allocated, reserved) in zip(snapshot.devices, totals)
        for event in out_of_memory_moments(history).tolist()
    ]
    events = [event for _, event in sorted(found, key=lambda pair: pair[0])]
    if _beside_torch(snapshot):
        return [*events, _beside_torchs_allocator(snapshot, totals)]
    if snapshot.oom is None:
        return events
    recorded = _as_recorded(snapshot.oom)
    same = [number for number, event in enumerate(events) if recorded.device in (None, event.device)]
    if same:  # the recorder noted the last one; its values are exact, and replace those of the history
        event = events.pop(same[-1])
        known = {name: value for name, value in vars(recorded).items() if value is not None and name in _NUMBERS}
        return [*events, replace(event, **known)]
    if snapshot.devices:
        history = snapshot.devices[0]
        batch, phase = batch_and_phase_at_end(snapshot, history)
        recorded = replace(recorded, batch=batch, phase=phase)
    return [*events, recorded]


def _beside_torchs_allocator(
    snapshot: Snapshot, totals: Sequence[tuple[np.ndarray, Optional[np.ndarray]]]
) -> OutOfMemoryEvent:
    message = f"outside of torch's allocator: {snapshot.error}"
    event = OutOfMemoryEvent(None, None, None, None, None, None, message, None, None, '', [])
    if len(snapshot.devices) != 1:
        return event
    (history,), ((allocated, reserved),) = snapshot.devices, totals
    batch, phase = batch_and_phase_at_end(snapshot, history)
    return replace(
        event,
        device=history.device,
        allocated=int(allocated[-1]),
        reserved=None if reserved is None else int(reserved[-1]),
        batch=batch,
        phase=phase,
    )


def _as_recorded(oom: OutOfMemory) -> OutOfMemoryEvent:
    numbers = (oom.device, oom.requested, oom.allocated, oom.reserved, oom.free, oom.total, oom.message)
    return OutOfMemoryEvent(*numbers, events=None, batch=None, phase='', asked=[])


def _as_in_history(
    snapshot: Snapshot,
    history: DeviceHistory,
    event: int,
    allocated: np.ndarray,
    reserved: Optional[np.ndarray],
) -> OutOfMemoryEvent:
    batch, phase = batch_and_phase(snapshot, history, event + 1)
    stack = snapshot.stacks[int(history.stack[event])]
    own = own_frames(stack)
    within = within_library(stack, own)
    return OutOfMemoryEvent(
        device=history.device,
        requested=int(history.size[event]),
        allocated=int(allocated[event]),
        reserved=None if reserved is None else int(reserved[event]),
        free=int(history.address[event]),
        total=None,
        message=None,
        events=event,
        batch=batch,
        phase=phase,
        asked=[*([] if within is None else [within]), *own],
    )
