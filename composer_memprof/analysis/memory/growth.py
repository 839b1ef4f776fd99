"""Memory that a steady state would have freed: what grows from batch to batch, and what is left at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.attribution import Attribution, PlaceShare
from composer_memprof.analysis.memory.categories import ACTIVATION, INPUT, TEMPORARY, UNKNOWN
from composer_memprof.analysis.memory.phases import batch_ends, rows_at
from composer_memprof.analysis.snapshot.model import DeviceHistory, Frame, Snapshot

#: Batches at the end of the recording that are compared, and how few of them are too few to tell.
_COMPARED, _FEWEST = 6, 3


@dataclass(frozen=True)
class GrowingPlace:
    """A place in the code that held more at the end of every batch compared than at the end of the one before.

    ``at_end``: bytes at the end of each; ``per_batch``: how much more each batch, on average.
    """

    per_batch: int
    at_end: list[int]
    frames: list[Frame]
    folded: int
    within: Optional[Frame] = None


@dataclass(frozen=True)
class Growth:
    """What was still allocated at the ends of batches, and at the end.

    Args:
        batches (list[int]): the last that ended within the recording, compared below; empty where the recorder did
            not tell of batches.
        at_end (list[int]): bytes allocated at the end of each.
        steady (bool, optional): whether nothing grew in every one of them; None for fewer than three batches.
        growing (list[GrowingPlace]): what did, the fastest first.
        held (list[PlaceShare]): allocated within the recording and still there at its end, other than parameters,
            buffers, gradients and the optimizer's state; where batches are known, allocated before the last one.
        held_bytes (int): of all these.
    """

    batches: list[int]
    at_end: list[int]
    steady: Optional[bool]
    growing: list[GrowingPlace]
    held: list[PlaceShare]
    held_bytes: int


def growth(snapshot: Snapshot, history: DeviceHistory, added: Attribution) -> Growth:
    """What grew, and what was held."""
    ends = batch_ends(history, snapshot.phases)[-_COMPARED:]
    blocks = added.blocks
    by_place = np.zeros((len(ends), len(added.places)), dtype=np.int64)
    for row, (_, count) in enumerate(ends):
        live = blocks.allocated_after(count)
        live = live[blocks.start[live] >= 0]
        np.add.at(by_place[row], added.place[live], blocks.size[live])
    allocated = blocks.allocated()
    growing = []
    if len(ends) >= _FEWEST:
        steps = np.diff(by_place, axis=0)
        for place in np.flatnonzero((steps > 0).all(axis=0)).tolist():
            at = added.places[place]
            per_batch = int(steps[:, place].sum()) // len(steps)
            sizes = by_place[:, place].tolist()
            growing.append(GrowingPlace(per_batch, sizes, list(at.frames), at.folded, at.within))
    held = _held(snapshot, history, added)
    return Growth(
        batches=[batch for batch, _ in ends],
        at_end=[int(allocated[count]) for _, count in ends],
        steady=None if len(ends) < _FEWEST else not growing,
        growing=sorted(growing, key=lambda place: -place.per_batch),
        held=added.by_place(held),
        held_bytes=int(blocks.size[held].sum()),
    )


def _held(snapshot: Snapshot, history: DeviceHistory, added: Attribution) -> np.ndarray:
    blocks = added.blocks
    passing = np.isin(added.categories.category, (ACTIVATION, INPUT, TEMPORARY, UNKNOWN))
    held = (blocks.start >= 0) & (blocks.freed == blocks.events) & passing
    rows = rows_at(history, snapshot.phases)
    if rows is not None and len(rows):
        batch = np.where(rows >= 0, snapshot.phases.batch[np.maximum(rows, 0)], -1)
        held &= batch[np.maximum(blocks.start, 0)] < snapshot.phases.batch[-1]
    return np.flatnonzero(held)
