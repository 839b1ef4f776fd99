"""The batch and phase of an event: from the phases that our recorder noted, else from its stack and torch's annotations."""

from __future__ import annotations

from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.blocks import library_stacks, stack_kinds
from composer_memprof.analysis.memory.blocks.stack_times import backward_has_no_stacks
from composer_memprof.analysis.snapshot.model import ALLOC, Annotations, DeviceHistory, Phases, Snapshot
from composer_memprof.vocabulary import BACKWARD, BETWEEN_BATCHES, DATALOADER, EVAL, FORWARD, OPTIMIZER, PREDICT

#: The phase of an event in torch's own annotations, by the beginning of their name.
_STEP = 'Optimizer.step#'
_ZERO_GRAD = 'zero_grad'
_BY_ANNOTATION = {_STEP: OPTIMIZER, 'Optimizer.zero_grad#': _ZERO_GRAD, 'enumerate(DataLoader)#': DATALOADER}
#: The phases in which a recording that did not fail ends.
_AT_END = (OPTIMIZER, EVAL, PREDICT)
_BY_KIND = {
    stack_kinds.FORWARD: FORWARD,
    stack_kinds.BACKWARD: BACKWARD,
    stack_kinds.OPTIMIZER: OPTIMIZER,
    stack_kinds.ZERO_GRAD: _ZERO_GRAD,
    stack_kinds.LOADER: DATALOADER,
}


def rows_at(history: DeviceHistory, phases: Phases) -> Optional[np.ndarray]:
    """The row of ``phases`` for each event, int64, -1 before the first phase; None without phases or times."""
    if not len(phases) or not history.has_times:
        return None
    return np.searchsorted(phases.time_us, history.time_us, side='right') - 1


def peak_by_phase(history: DeviceHistory, phases: Phases, allocated: np.ndarray, within: slice) -> dict[str, int]:
    """The peak of each phase over all batches, in order of first use; empty without phases or times.

    Args:
        history (DeviceHistory): of a device.
        phases (Phases): of the recording.
        allocated (ndarray): bytes after each number of events; one longer than the events.
        within (slice): the part of ``allocated`` that counts.
    """
    rows = rows_at(history, phases)
    if rows is None:
        return {}
    counts = np.zeros(len(allocated), dtype=bool)
    counts[within] = True
    events = np.flatnonzero(counts[1:] & (rows >= 0))
    # An event's phase begins with what the event before has left.
    highest = np.maximum(allocated[:-1], allocated[1:])[events]
    peaks = np.full(len(phases.names), -1, dtype=np.int64)
    np.maximum.at(peaks, phases.name[rows[events]], highest)
    used = dict.fromkeys(phases.name.tolist())
    return {phases.names[name]: int(peaks[name]) for name in used if peaks[name] >= 0}


def batch_and_phase(snapshot: Snapshot, history: DeviceHistory, count: int) -> tuple[Optional[int], str]:
    """The batch and phase of the ``count``-th event; None and ``''`` if they are not known.

    Without phases of our recorder, the batch is not known. The event's stack decides the phase, because a trainer may run
    forward and backward within ``Optimizer.step``. If the stack shows no phase, the innermost annotation decides.
    """
    if not len(snapshot.phases):
        return None, _phase_by_torch(snapshot, history, max(count - 1, 0))
    rows = rows_at(history, snapshot.phases)
    if rows is None or not len(rows):
        return None, ''
    row = int(rows[max(count - 1, 0)])
    phases = snapshot.phases
    return (None, '') if row < 0 else (int(phases.batch[row]), phases.names[int(phases.name[row])])


def batch_and_phase_at_end(snapshot: Snapshot, history: DeviceHistory) -> tuple[Optional[int], str]:
    """The batch and phase in which the recording ended. The stack of the last event is no proof: more may have run."""
    if len(snapshot.phases):
        return batch_and_phase(snapshot, history, len(history.action))
    if snapshot.annotations is None:
        return None, ''
    return None, _phase_by_annotation(snapshot.annotations, np.iinfo(np.int64).max)


def _phase_by_torch(snapshot: Snapshot, history: DeviceHistory, event: int) -> str:
    if event >= len(history.action):
        return ''
    stack = int(history.stack[event])
    if not stack and history.action[event] == ALLOC and backward_has_no_stacks(history):
        return BACKWARD
    stacks = [snapshot.stacks[stack]]
    if int(library_stacks.purposes(stacks)[0]) == library_stacks.RECOMPUTATION:
        return BACKWARD
    phase = _BY_KIND.get(int(stack_kinds.stack_kinds(stacks)[0]), '')
    if phase or snapshot.annotations is None or not history.has_times:
        return phase
    return _phase_by_annotation(snapshot.annotations, int(history.time_us[event]))


def _phase_by_annotation(annotations: Annotations, time_us: int) -> str:
    """The phase of the innermost range around a time, or its name if it is the user's own."""
    around = np.flatnonzero((annotations.begin_us <= time_us) & (time_us <= annotations.end_us))
    if not len(around):
        return ''
    name = annotations.names[int(annotations.name[around[-1]])]
    return next((phase for start, phase in _BY_ANNOTATION.items() if name.startswith(start)), name)


def begins_between_batches(history: DeviceHistory, phases: Phases) -> bool:
    """Whether the recording began after a batch and before the next one's forward."""
    rows = rows_at(history, phases)
    if rows is None or not len(rows) or rows[0] < 0 or not phases.batch[0]:
        return False
    return phases.names[int(phases.name[0])] in (BETWEEN_BATCHES, DATALOADER)


def step_ends(history: DeviceHistory, annotations: Optional[Annotations]) -> list[tuple[int, int]]:
    """The optimizer's steps that ended within the recording, numbered from 1, each with the events up to its end."""
    if annotations is None or not history.has_times:
        return []
    is_step = np.array([name.startswith(_STEP) for name in annotations.names], dtype=bool)
    ends = np.sort(annotations.end_us[is_step[annotations.name]])
    ends = ends[(ends >= history.time_us[0]) & (ends < np.iinfo(np.int64).max)]
    counts = np.searchsorted(np.maximum.accumulate(history.time_us), ends, side='right')
    return [(number, int(count)) for number, count in enumerate(counts, start=1)]


def batch_ends(history: DeviceHistory, phases: Phases, *, failed: bool) -> list[tuple[int, int]]:
    """The batches that ended within the recording, each with the number of events up to its end.

    Args:
        history (DeviceHistory): of a device.
        phases (Phases): of the recording.
        failed (bool): the training failed within the last batch. Otherwise a recording ends at the end of a batch.
    """
    if not len(phases) or not history.has_times:
        return []
    begins = np.flatnonzero(np.diff(phases.batch, prepend=phases.batch[0] - 1))
    counts = np.searchsorted(history.time_us, phases.time_us[begins], side='left')
    ends = [(int(phases.batch[row]), int(count)) for row, count in zip(begins[:-1], counts[1:])]
    # What runs between two batches may have the number of the next one, which then has not begun.
    of_last = [phases.names[name] for name in phases.name[begins[-1] :].tolist()]
    if (of_last[-1] == BETWEEN_BATCHES and {FORWARD, BACKWARD} & {*of_last}) or (not failed and of_last[-1] in _AT_END):
        ends.append((int(phases.batch[-1]), len(history.action)))
    return [end for end in ends if end[1] > 0]
