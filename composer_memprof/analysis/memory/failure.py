"""The failure that a snapshot was taken for: when it was, what was asked for, and what there was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

import numpy as np

from composer_memprof.analysis.memory.frames import own_frames, within_library
from composer_memprof.analysis.memory.phases import placed
from composer_memprof.analysis.snapshot.model import OOM, DeviceHistory, Frame, OutOfMemory, Snapshot


@dataclass(frozen=True)
class OutOfMemoryEvent:
    """The moment at which memory ran out, in bytes. None where it is not known.

    ``asked``: the place in the code that asked, as frames; ``events``: how many there had been by then.
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
    """How many events there had been on a device when the training failed; None where the snapshot is of no failure.

    The event of running out, else the end of the recording.
    """
    if not snapshot.error and snapshot.oom is None:
        return None
    out_of_memory = np.flatnonzero(history.action == OOM)
    return int(out_of_memory[-1]) if len(out_of_memory) else len(history.action)


def out_of_memory_of(
    snapshot: Snapshot, totals: Sequence[tuple[np.ndarray, Optional[np.ndarray]]]
) -> Optional[OutOfMemoryEvent]:
    """When and where memory ran out, if it did. ``totals``: of each device the bytes allocated before its first event
    and after each, and those reserved where that is known.
    """
    found = None if snapshot.oom is None else _as_recorded(snapshot.oom)
    for history, (allocated, reserved) in zip(snapshot.devices, totals):
        if np.any(history.action == OOM) and (found is None or found.device in (None, history.device)):
            found = _as_in_history(snapshot, history, allocated, reserved, found)
    if found is not None and found.events is None and snapshot.devices:
        history = snapshot.devices[0]
        batch, phase = placed(history, snapshot.phases, len(history.action))
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
    """The last such event of a history; what the recorder was told by the exception counts more."""
    event = int(np.flatnonzero(history.action == OOM)[-1])
    batch, phase = placed(history, snapshot.phases, event + 1)
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
