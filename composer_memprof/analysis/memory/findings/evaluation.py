"""Memory that each batch of an evaluation leaves allocated, such as outputs that are collected until it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.blocks.phases import rows_at
from composer_memprof.analysis.memory.findings.attribution import Attribution
from composer_memprof.analysis.memory.findings.kept_by import keeper_of
from composer_memprof.analysis.snapshot.model import DeviceHistory, Frame, Snapshot
from composer_memprof.vocabulary import EVAL

#: The fewest batches that show growth.
_FEWEST = 3


@dataclass(frozen=True)
class KeptInEvaluation:
    """A place in the code of which batches of the evaluation in which a recording ends have left blocks.

    Args:
        bytes (int): that they have left.
        batches (int): that have left some.
        frames (list[Frame]): innermost first, the user's own if there are any.
        kept_by (str): what keeps the blocks, in words; ``''`` if that is not known.
    """

    bytes: int
    batches: int
    frames: list[Frame]
    kept_by: str


def kept_in_evaluation(
    snapshot: Snapshot, history: DeviceHistory, attribution: Attribution
) -> Optional[KeptInEvaluation]:
    """The place with most such bytes; None if the recording does not end in an evaluation, or few batches left blocks."""
    phases, blocks = snapshot.phases, attribution.blocks
    rows = rows_at(history, phases)
    if rows is None or not len(rows):
        return None
    is_eval = np.array([name.startswith(EVAL) for name in phases.names], dtype=bool)[phases.name]
    training = np.flatnonzero(~is_eval)
    begin = int(training[-1]) + 1 if len(training) else 0  # the first row of the last evaluation
    live = np.flatnonzero((blocks.start >= 0) & (blocks.freed == blocks.events))
    row = rows[blocks.start[live]]
    live, row = live[row >= begin], row[row >= begin]
    if not len(live):
        return None
    sizes = np.zeros(len(attribution.places), dtype=np.int64)
    np.add.at(sizes, attribution.place[live], blocks.size[live])
    left = np.unique(np.stack((attribution.place[live], row)), axis=1)
    batches = np.bincount(left[0], minlength=len(sizes))
    sizes[batches < _FEWEST] = 0
    place = int(sizes.argmax())
    if not sizes[place]:
        return None
    kept_by = keeper_of(place, attribution, blocks.events, snapshot.keepers)
    return KeptInEvaluation(int(sizes[place]), int(batches[place]), list(attribution.places[place].frames), kept_by)
