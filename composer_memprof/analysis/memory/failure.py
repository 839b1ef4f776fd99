"""The failure that a snapshot was taken for: when it was, what was requested, and how much memory there was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

import numpy as np

from composer_memprof.analysis.memory.frames import own_frames, within_library
from composer_memprof.analysis.memory.phases import batch_and_phase
from composer_memprof.analysis.snapshot.model import OOM, DeviceHistory, Frame, OutOfMemory, Snapshot


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
    """The number of events before the training failed: before the last ``oom`` event, or all if there is none.

    None if the snapshot was not taken for a failure.
    """
    if not snapshot.error and snapshot.oom is None:
        return None
    out_of_memory = np.flatnonzero(history.action == OOM)
    return int(out_of_memory[-1]) if len(out_of_memory) else len(history.action)


def out_of_memory_of(
    snapshot: Snapshot, totals: Sequence[tuple[np.ndarray, Optional[np.ndarray]]]
) -> Optional[OutOfMemoryEvent]:
    """The allocation that failed, if one did.

    Args:
        snapshot (Snapshot): the snapshot.
        totals (Sequence): for each device the bytes allocated before the first event and after each, and the bytes
            reserved, or None if they are not known.
    """
    found = None if snapshot.oom is None else _as_recorded(snapshot.oom)
    for history, (allocated, reserved) in zip(snapshot.devices, totals):
        if np.any(history.action == OOM) and (found is None or found.device in (None, history.device)):
            found = _as_in_history(snapshot, history, allocated, reserved, found)
    if found is not None and found.events is None and snapshot.devices:
        history = snapshot.devices[0]
        batch, phase = batch_and_phase(history, snapshot.phases, len(history.action))
        found = replace(found, batch=batch, phase=phase)
    return found


def _as_recorded(oom: OutOfMemory) -> OutOfMemoryEvent:
    numbers = (oom.device, oom.requested, oom.allocated, oom.reserved, oom.free, oom.total, oom.message)
    return OutOfMemoryEvent(*numbers, events=None, batch=None, phase='', asked=[])


def _as_in_history(
    snapshot: Snapshot,
    history: DeviceHistory,
    allocated: np.ndarray,
    reserved: Optional[np.ndarray],
    recorded: Optional[OutOfMemoryEvent],
) -> OutOfMemoryEvent:
    """The last ``oom`` event of a history. Values that the recorder noted come first."""
    event = int(np.flatnonzero(history.action == OOM)[-1])
    batch, phase = batch_and_phase(history, snapshot.phases, event + 1)
    seen = {
        'device': history.device,
        'requested': int(history.size[event]),
        'allocated': int(allocated[event]),
        'reserved': None if reserved is None else int(reserved[event]),
        'free': int(history.address[event]),
    }
    stack = snapshot.stacks[int(history.stack[event])]
    own = own_frames(stack)
    within = within_library(stack, own)
    found = recorded or _as_recorded(OutOfMemory())
    missing: dict[str, Any] = {key: value for key, value in seen.items() if getattr(found, key) is None}
    asked = [*([] if within is None else [within]), *own]
    return replace(found, **missing, events=event, batch=batch, phase=phase, asked=asked)
