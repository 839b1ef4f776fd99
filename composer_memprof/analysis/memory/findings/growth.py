"""Memory that a steady run would have freed: places that grow with every batch, and blocks that are left at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.blocks.phases import batch_ends, begins_between_batches, rows_at, step_ends
from composer_memprof.analysis.memory.categories.categories import CATEGORIES
from composer_memprof.analysis.memory.findings.attribution import Attribution, PlaceShare
from composer_memprof.analysis.memory.findings.evaluation import KeptInEvaluation, kept_in_evaluation
from composer_memprof.analysis.memory.findings.kept_by import keeper_of
from composer_memprof.analysis.snapshot.model import DeviceHistory, Frame, Snapshot
from composer_memprof.vocabulary import BUFFER, GRADIENT, OPTIMIZER_STATE, PARAMETER, WORKSPACE

#: The last batches of the recording that are compared, and the fewest that show growth.
_COMPARED, _FEWEST = 6, 3
#: The same for places that grow now and then; how often they grow; and the least growth of the second half, as a share of
#: the first half's.
_COMPARED_RARE, _FEWEST_RARE, _TIMES, _GOES_ON = 80, 8, 3, 0.4
#: What each batch before the recording left may differ by this share from what the one within it leaves.
_AS_BEFORE = 0.2
#: In lines that make a longer tensor of a shorter one; and by what share its steps may differ.
_JOINS, _ALIKE = ('cat(', 'stack(', 'concat', 'append('), 0.05
#: From this share of what a place has on, what was freed in its stead shows that it replaces.
_REPLACED = 0.3
#: The folder of torch's collectives and of what calls them, one of whose files is among this many innermost frames.
_COLLECTIVES, _INNERMOST = 'torch/distributed/', 8
#: The categories whose blocks outlive their batch, and the codes of all others.
_LONG_LIVED = (PARAMETER, BUFFER, GRADIENT, OPTIMIZER_STATE, WORKSPACE)
_SHORT_LIVED = tuple(code for code, key in enumerate(CATEGORIES) if key not in _LONG_LIVED)


@dataclass(frozen=True)
class GrowingPlace:
    """A place in the code of which each compared batch, or one every few batches, has left blocks.

    Args:
        per_batch (int): average growth in bytes.
        at_end (list[int]): bytes allocated at the end of each compared batch.
        frames (list[Frame]): as in :class:`PlaceShare`, and the next two.
        folded (int): number of frames left out.
        within (Frame, optional): the library's frame that allocated.
        kept_by (str): what keeps its blocks, in words; ``''`` if that is not known.
    """

    per_batch: int
    at_end: list[int]
    frames: list[Frame]
    folded: int
    within: Optional[Frame] = None
    kept_by: str = ''


@dataclass(frozen=True)
class Growth:
    """Bytes that were still allocated at the ends of batches and at the end of the recording.

    Args:
        batches (list[int]): the last batches that ended within the recording; empty if none is known. If they are fewer than
            three, the batch before the recording comes first, where that began between two batches.
        at_end (list[int]): bytes allocated at the end of each batch.
        steady (bool, optional): True if no place grew; None if batches are too few to tell.
        growing (list[GrowingPlace]): places that grew in every batch, or again and again, the fastest first.
        held (list[PlaceShare]): blocks allocated within the recording and not freed, without parameters, buffers,
            gradients, optimizer state and workspaces. If batches are known, only those allocated before the last batch.
        held_bytes (int): bytes of the blocks in ``held``.
        unit (str): what ``batches`` numbers: ``'batch'``; or ``'optimizer step'`` of the recording, from 1, as torch
            annotated it, if the recording has no phases.
        in_evaluation (KeptInEvaluation, optional): the place of which the batches of the last evaluation have left most.
    """

    batches: list[int]
    at_end: list[int]
    steady: Optional[bool]
    growing: list[GrowingPlace]
    held: list[PlaceShare]
    held_bytes: int
    unit: str = 'batch'
    in_evaluation: Optional[KeptInEvaluation] = None


def growth(snapshot: Snapshot, history: DeviceHistory, attribution: Attribution) -> Growth:
    """The growth of one device's memory."""
    failed = bool(snapshot.error) or snapshot.oom is not None
    all_ends = batch_ends(history, snapshot.phases, failed=failed)[-_COMPARED_RARE:]
    unit = 'batch'
    if not all_ends and not len(snapshot.phases):
        all_ends, unit = step_ends(history, snapshot.annotations)[-_COMPARED_RARE:], 'optimizer step'
    blocks = attribution.blocks
    began_between = begins_between_batches(history, snapshot.phases)
    stayed = _stayed_from_before(attribution) if began_between else np.zeros(len(attribution.places), np.int64)
    are_few = began_between and 0 < len(all_ends) < _FEWEST
    if are_few:
        all_ends = [(all_ends[0][0] - 1, 0), *all_ends]
    ends = all_ends[-_COMPARED:]
    by_place_at_all = _by_place(all_ends, snapshot, attribution)
    by_place = by_place_at_all[-_COMPARED:]
    allocated = blocks.allocated()
    growing = []
    if len(ends) >= _FEWEST or are_few:
        steps = np.diff(by_place, axis=0)
        left = _left_by_each(ends, attribution) & ~_replaces(ends, attribution)
        left |= _lengthens(by_place, attribution, snapshot.sources) | _multiplies(by_place, ends, attribution)
        in_each = (steps > 0).all(axis=0) & left
        if are_few:
            in_each &= _goes_on_from_before(stayed, steps, ends)
        in_some = _grows_rarely(by_place_at_all, all_ends, attribution) & ~in_each
        for place in np.flatnonzero(in_each | in_some).tolist():
            at = attribution.places[place]
            own = by_place_at_all[:, place] if in_some[place] else by_place[:, place]
            per_batch = int(own[-1] - own[0]) // (len(own) - 1)
            sizes = (by_place[:, place] + stayed[place]).tolist()
            kept_by = keeper_of(place, attribution, ends[-1][1], snapshot.keepers)
            growing.append(GrowingPlace(per_batch, sizes, list(at.frames), at.folded, at.within, kept_by))
    held = _held(snapshot, history, attribution)
    return Growth(
        batches=[batch for batch, _ in ends],
        at_end=[int(allocated[count]) for _, count in ends],
        steady=False if growing else None if len(ends) < _FEWEST else True,
        growing=sorted(growing, key=lambda place: -place.per_batch),
        held=attribution.by_place(held),
        held_bytes=int(blocks.size[held].sum()),
        unit=unit,
        in_evaluation=kept_in_evaluation(snapshot, history, attribution),
    )


def _stayed_from_before(attribution: Attribution) -> np.ndarray:
    """For each place, the bytes that it allocated before the recording began and that were not freed since, int64.

    Blocks without a stack, of any place, and those that are meant to stay are left out.
    """
    blocks = attribution.blocks
    is_own = (blocks.stack > 0) & np.isin(attribution.categories.category, _SHORT_LIVED)
    chosen = np.flatnonzero(is_own & (blocks.start < 0) & (blocks.freed == blocks.events))
    found = np.zeros(len(attribution.places), dtype=np.int64)
    np.add.at(found, attribution.place[chosen], blocks.size[chosen])
    return found


def _goes_on_from_before(stayed: np.ndarray, steps: np.ndarray, ends: Sequence[tuple[int, int]]) -> np.ndarray:
    """For each place, whether it grew before the recording, too. If one batch was recorded, each before must have left as much."""
    if len(steps) > 1:
        return stayed >= steps.min(axis=0)
    expected = ends[-1][0] * steps[0]
    return (ends[-1][0] > 1) & (np.abs(stayed - expected) <= _AS_BEFORE * expected)


def _by_place(ends: Sequence[tuple[int, int]], snapshot: Snapshot, attribution: Attribution) -> np.ndarray:
    """Bytes that the recording has allocated and not freed, int64, by end of a batch and place."""
    blocks, counts = attribution.blocks, np.array([count for _, count in ends], dtype=np.int64)
    own = np.flatnonzero((blocks.start >= 0) & ~np.isin(blocks.stack, _freed_unseen(snapshot)))
    found = np.zeros((len(ends) + 1, len(attribution.places)), dtype=np.int64)
    for events, sign in ((blocks.start, 1), (blocks.freed, -1)):
        first = np.searchsorted(counts, events[own], side='right')  # the first end that is after the event
        np.add.at(found, (first, attribution.place[own]), sign * blocks.size[own])
    return np.cumsum(found, axis=0)[:-1]


def _grows_rarely(by_place: np.ndarray, ends: Sequence[tuple[int, int]], attribution: Attribution) -> np.ndarray:
    """For each place, whether batches now and then have left blocks that stay, as early as late, and none was freed."""
    if len(ends) < _FEWEST_RARE:
        return np.zeros(by_place.shape[1], dtype=bool)
    steps, blocks = np.diff(by_place, axis=0), attribution.blocks
    half = len(steps) // 2
    first, second = steps[:half].sum(axis=0), steps[half:].sum(axis=0)
    goes_on = (steps >= 0).all(axis=0) & (first > 0) & (second >= _GOES_ON * first)
    live = blocks.allocated_after(ends[-1][1])
    row = np.searchsorted([count for _, count in ends], blocks.start[live], side='right')
    left = np.unique(np.stack((row, attribution.place[live]))[:, row > 0], axis=1)
    times = np.bincount(left[1], minlength=by_place.shape[1])
    return goes_on & (times >= _TIMES) & ~_replaces(ends, attribution)


def _freed_unseen(snapshot: Snapshot) -> list[int]:
    """The stacks of a CPU's collectives: threads of the backend, which no profiler sees, free some of their blocks."""
    if snapshot.meta.device != 'cpu':
        return []
    return [
        number
        for number, stack in enumerate(snapshot.stacks)
        if any(_COLLECTIVES in frame.filename for frame in stack[:_INNERMOST])
    ]


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


def _lengthens(by_place: np.ndarray, attribution: Attribution, sources: Mapping[str, str]) -> np.ndarray:
    """For each place, whether it puts the same more into one tensor with each batch, as ``torch.cat`` of all so far."""
    steps = np.diff(by_place, axis=0)
    alike = np.abs(steps - steps[0]) <= _ALIKE * np.abs(steps[0])
    found = np.zeros(by_place.shape[1], dtype=bool)
    for place in np.flatnonzero(alike.all(axis=0) & (steps[0] > 0)).tolist():
        frame = next(iter(attribution.places[place].frames), None)
        text = '' if frame is None else sources.get(f'{frame.filename}:{frame.line}', '')
        found[place] = any(word in text for word in _JOINS)
    return found


def _multiplies(by_place: np.ndarray, ends: Sequence[tuple[int, int]], attribution: Attribution) -> np.ndarray:
    """For each place, whether it makes as many blocks more with each batch, all of one size, in place of those before: as a
    hook that is registered again and again.
    """
    blocks, places = attribution.blocks, len(attribution.places)
    steps = np.diff(by_place, axis=0)
    live = blocks.allocated_after(ends[-1][1])
    live = live[blocks.start[live] >= 0]
    counts, sizes = np.bincount(attribution.place[live], minlength=places), np.zeros(places, dtype=np.int64)
    np.maximum.at(sizes, attribution.place[live], blocks.size[live])
    of_one_size = (counts * sizes == by_place[-1]) & (counts >= len(ends))
    return (
        of_one_size & (steps > 0).all(axis=0) & (steps == steps[0]).all(axis=0) & (steps[0] % np.maximum(sizes, 1) == 0)
    )


def _replaces(ends: Sequence[tuple[int, int]], attribution: Attribution) -> np.ndarray:
    """For each place, whether blocks of its sizes from before the recording were freed in its stead, as of the oldest of
    the few results that are kept.
    """
    blocks = attribution.blocks
    (_, begin), (_, end) = ends[0], ends[-1]
    freed = np.flatnonzero((blocks.start < 0) & (blocks.freed >= begin) & (blocks.freed < end))
    own = np.flatnonzero((blocks.start >= 0) & (blocks.start < end))
    same = own[np.isin(blocks.size[own], blocks.size[freed])]
    grown = np.zeros(len(attribution.places), dtype=np.int64)
    live = blocks.allocated_after(end)
    np.add.at(grown, attribution.place[live], np.where(blocks.start[live] >= 0, blocks.size[live], 0))
    given = np.zeros_like(grown)
    for place in np.unique(attribution.place[same]).tolist():
        sizes = np.unique(blocks.size[same[attribution.place[same] == place]])
        given[place] = blocks.size[freed[np.isin(blocks.size[freed], sizes)]].sum()
    return (given > 0) & (given >= _REPLACED * grown)


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
