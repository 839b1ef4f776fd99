"""Memory that a steady run would have freed: places that grow with every batch, and blocks that are left at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.blocks.phases import batch_ends, rows_at, step_ends
from composer_memprof.analysis.memory.categories.categories import CATEGORIES
from composer_memprof.analysis.memory.findings.attribution import Attribution, PlaceShare
from composer_memprof.analysis.snapshot.model import DeviceHistory, Frame, Snapshot
from composer_memprof.vocabulary import BUFFER, GRADIENT, OPTIMIZER_STATE, PARAMETER, WORKSPACE

#: The last batches of the recording that are compared, and the fewest that show growth.
_COMPARED, _FEWEST = 6, 3
#: The categories whose blocks outlive their batch, and the codes of all others.
_LONG_LIVED = (PARAMETER, BUFFER, GRADIENT, OPTIMIZER_STATE, WORKSPACE)
_SHORT_LIVED = tuple(code for code, key in enumerate(CATEGORIES) if key not in _LONG_LIVED)


@dataclass(frozen=True)
class GrowingPlace:
    """A place in the code of which each compared batch has left blocks, so that more bytes are allocated at each end.

    Args:
        per_batch (int): average growth in bytes.
        at_end (list[int]): bytes allocated at the end of each compared batch.
        frames (list[Frame]): as in :class:`PlaceShare`, and the next two.
        folded (int): number of frames left out.
        within (Frame, optional): the library's frame that allocated.
    """

    per_batch: int
    at_end: list[int]
    frames: list[Frame]
    folded: int
    within: Optional[Frame] = None


@dataclass(frozen=True)
class Growth:
    """Bytes that were still allocated at the ends of batches and at the end of the recording.

    Args:
        batches (list[int]): the last batches that ended within the recording; empty if none is known.
        at_end (list[int]): bytes allocated at the end of each batch.
        steady (bool, optional): True if no place grew in every batch; None for fewer than three batches.
        growing (list[GrowingPlace]): places that grew in every batch, the fastest first.
        held (list[PlaceShare]): blocks allocated within the recording and not freed, without parameters, buffers,
            gradients, optimizer state and workspaces. If batches are known, only those allocated before the last batch.
        held_bytes (int): bytes of the blocks in ``held``.
        unit (str): what ``batches`` numbers: ``'batch'``; or ``'optimizer step'`` of the recording, from 1, as torch
            annotated it, if the recording has no phases.
    """

    batches: list[int]
    at_end: list[int]
    steady: Optional[bool]
    growing: list[GrowingPlace]
    held: list[PlaceShare]
    held_bytes: int
    unit: str = 'batch'


def growth(snapshot: Snapshot, history: DeviceHistory, attribution: Attribution) -> Growth:
    """The growth of one device's memory."""
    failed = bool(snapshot.error) or snapshot.oom is not None
    ends = batch_ends(history, snapshot.phases, failed=failed)[-_COMPARED:]
    unit = 'batch'
    if not ends and not len(snapshot.phases):
        ends, unit = step_ends(history, snapshot.annotations)[-_COMPARED:], 'optimizer step'
    blocks = attribution.blocks
    by_place = np.zeros((len(ends), len(attribution.places)), dtype=np.int64)
    for row, (_, count) in enumerate(ends):
        live = blocks.allocated_after(count)
        live = live[blocks.start[live] >= 0]
        np.add.at(by_place[row], attribution.place[live], blocks.size[live])
    allocated = blocks.allocated()
    growing = []
    if len(ends) >= _FEWEST:
        steps = np.diff(by_place, axis=0)
        left = _left_by_each(ends, attribution)
        for place in np.flatnonzero((steps > 0).all(axis=0) & left).tolist():
            at = attribution.places[place]
            per_batch = int(steps[:, place].sum()) // len(steps)
            sizes = by_place[:, place].tolist()
            growing.append(GrowingPlace(per_batch, sizes, list(at.frames), at.folded, at.within))
    held = _held(snapshot, history, attribution)
    return Growth(
        batches=[batch for batch, _ in ends],
        at_end=[int(allocated[count]) for _, count in ends],
        steady=None if len(ends) < _FEWEST else not growing,
        growing=sorted(growing, key=lambda place: -place.per_batch),
        held=attribution.by_place(held),
        held_bytes=int(blocks.size[held].sum()),
        unit=unit,
    )


def _left_by_each(ends: Sequence[tuple[int, int]], attribution: Attribution) -> np.ndarray:
    """For each place, whether each batch but the last has left blocks that are still allocated at the last end.

    What is replaced in every batch, such as its outputs, may grow by chance.
    """
    blocks = attribution.blocks
    live = blocks.allocated_after(ends[-1][1])
    left = np.ones(len(attribution.places), dtype=bool)
    for (_, begin), (_, end) in zip(ends, ends[1:-1]):
        of_batch = live[(blocks.start[live] >= begin) & (blocks.start[live] < end)]
        left &= np.bincount(attribution.place[of_batch], minlength=len(left)) > 0
    return left


def _held(snapshot: Snapshot, history: DeviceHistory, attribution: Attribution) -> np.ndarray:
    blocks = attribution.blocks
    short_lived = np.isin(attribution.categories.category, _SHORT_LIVED)
    held = (blocks.start >= 0) & (blocks.freed == blocks.events) & short_lived
    rows = rows_at(history, snapshot.phases)
    if rows is not None and len(rows):
        batch = np.where(rows >= 0, snapshot.phases.batch[np.maximum(rows, 0)], -1)
        held &= batch[np.maximum(blocks.start, 0)] < snapshot.phases.batch[-1]
    elif not len(snapshot.phases):
        ends = step_ends(history, snapshot.annotations)
        if len(ends) > 1:
            held &= blocks.start < ends[-2][1]
    return np.flatnonzero(held)
