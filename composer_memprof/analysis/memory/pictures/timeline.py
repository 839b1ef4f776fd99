"""The allocated bytes over time, with the lifetimes of the largest blocks: as much as a picture can show.

Moment ``k`` is the state after ``k`` events; moment 0 is before the first one. A block is allocated from moment
``born`` until the moment before ``died``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.blocks.frames import own_frames, within_library
from composer_memprof.analysis.memory.blocks.lifetimes import Lifetimes, lifetimes
from composer_memprof.analysis.memory.categories.categories import CATEGORIES, Categories, categories
from composer_memprof.analysis.memory.findings.fragmentation import is_caching, reserved_over_time
from composer_memprof.analysis.snapshot.model import DeviceHistory, Frame, Snapshot, Stack

#: A block. ``born`` is 0 if it was allocated before the recording; ``died`` is one more than the last moment if it was
#: not freed; ``size`` is in bytes; ``stack`` and ``module`` are indices into the snapshot's lists; ``category``, ``rule``
#: and ``tensor`` are as in :class:`Categories`; ``at_end`` is its row in the history's ``blocks``, or -1.
LIFE = np.dtype(
    [
        *(('born', 'i4'), ('died', 'i4'), ('size', 'i8'), ('stack', 'i4'), ('module', 'i4')),
        *(('category', 'i1'), ('rule', 'i1'), ('tensor', 'i4'), ('at_end', 'i4')),
    ]
)

#: Pairs of a line and a category whose small blocks have a curve of their own: those with most bytes at the peak.
_CURVES = 24


@dataclass(frozen=True)
class Lines:
    """Stacks grouped by the user's innermost line.

    Args:
        frames (list[Frame | None]): the line of each group; None for stacks without one.
        within (list[Frame | None]): the library's frame that allocated, if the line does not show what allocated.
        of_stack (ndarray): int32, for each stack the number of its group.
    """

    frames: list[Optional[Frame]]
    within: list[Optional[Frame]]
    of_stack: np.ndarray


@dataclass(frozen=True)
class SmallerBlocks:
    """Blocks that are not drawn one by one, summed by line and category.

    Args:
        blocks (int): number of blocks.
        largest (int): bytes of the largest one; 0 if there is none.
        moments (ndarray): int64, the moments of the sums, ascending, with the first and the last one.
        lines (ndarray): int32, the line of each curve; the curve with most bytes at the peak comes first.
        categories (ndarray): int32, the category of each curve.
        sizes (ndarray): int64, a row for each curve and one for the rest, a column for each moment.
    """

    blocks: int
    largest: int
    moments: np.ndarray
    lines: np.ndarray
    categories: np.ndarray
    sizes: np.ndarray


@dataclass(frozen=True)
class AllocationTimeline:
    """One device's memory over time.

    At each of ``smaller.moments``, the sizes of ``blocks`` and the sums of ``smaller`` add up to ``total``.

    Args:
        device (int): its index.
        total (ndarray): int64, bytes allocated at each moment.
        reserved (ndarray, optional): int64, bytes reserved at each moment; None without a caching allocator.
        time_us (ndarray, optional): int64, since the first event, at each moment; None if the format has no times.
        peak (int): the first moment with the largest total.
        blocks (ndarray): the blocks to draw one by one, the largest, with dtype ``LIFE``, in order of ``born``.
        smaller (SmallerBlocks): the other blocks.
    """

    device: int
    total: np.ndarray
    reserved: Optional[np.ndarray]
    time_us: Optional[np.ndarray]
    peak: int
    blocks: np.ndarray
    smaller: SmallerBlocks

    @property
    def events(self) -> int:
        return len(self.total) - 1

    @property
    def peak_bytes(self) -> int:
        return int(self.total[self.peak])

    def live_blocks(self, moment: int) -> np.ndarray:
        """The blocks to draw that are allocated at a moment."""
        return self.blocks[(self.blocks['born'] <= moment) & (moment < self.blocks['died'])]


def lines_of(stacks: Sequence[Stack]) -> Lines:
    """Group stacks by their innermost own frame; group 0 has the empty stack."""
    index: dict[tuple[Optional[Frame], Optional[Frame]], int] = {}
    of_stack = []
    for stack in stacks:
        own = own_frames(stack)
        of_stack.append(index.setdefault((next(iter(own), None), within_library(stack, own)), len(index)))
    frames, within = zip(*index) if index else ((), ())
    return Lines(list(frames), list(within), np.array(of_stack, dtype=np.int32))


def timeline_of(snapshot: Snapshot, history: DeviceHistory, spans: int) -> AllocationTimeline:
    """One device's timeline with every block.

    Args:
        snapshot (Snapshot): the snapshot.
        history (DeviceHistory): one of its devices.
        spans (int): number of spans of time. :func:`sum_up_smaller` computes sums at the moments of the largest and
            smallest total of each.
    """
    lives = lifetimes(history)
    total = lives.allocated()
    moments = extremes(total, spans)
    none = np.zeros(0, dtype=np.int32)
    return AllocationTimeline(
        device=history.device,
        total=total,
        reserved=reserved_over_time(history) if is_caching(snapshot, history) else None,
        time_us=since_first(history.time_us) if history.has_times else None,
        peak=int(total.argmax()),
        blocks=_by_birth(history, lives, categories(snapshot, history, lives)),
        smaller=SmallerBlocks(0, 0, moments, none, none, np.zeros((1, len(moments)), dtype=np.int64)),
    )


def sum_up_smaller(timeline: AllocationTimeline, lines: Lines, most_blocks: int) -> AllocationTimeline:
    """Keep the ``most_blocks`` largest blocks (among equally large blocks the longest-lived) and sum up the others.

    ``timeline`` must have every block.
    """
    rows = timeline.blocks
    rank = np.lexsort((rows['born'].astype(np.int64) - rows['died'], -rows['size']))
    chosen = np.zeros(len(rows), dtype=bool)
    chosen[rank[:most_blocks]] = True
    smaller = _sums(rows[~chosen], lines, timeline.smaller.moments, timeline.peak)
    return dataclasses.replace(timeline, blocks=rows[chosen], smaller=smaller)


def sums_over_time(
    curve: np.ndarray, curves: int, born: np.ndarray, died: np.ndarray, size: np.ndarray, moments: np.ndarray
) -> np.ndarray:
    """The bytes of each curve's blocks that are allocated at each of ``moments``, as int64, a row for each curve.

    Args:
        curve (ndarray): of each block, from 0 to ``curves`` - 1.
        curves (int): number of curves.
        born (ndarray): the moment of each block from which on it is allocated.
        died (ndarray): the first moment at which it is not.
        size (ndarray): of each block.
        moments (ndarray): ascending.
    """
    change = np.zeros((curves, len(moments) + 1), dtype=np.int64)
    np.add.at(change, (curve, np.searchsorted(moments, born)), size)
    np.subtract.at(change, (curve, np.searchsorted(moments, died)), size)
    return np.cumsum(change, axis=1)[:, :-1]


def since_first(times: np.ndarray) -> np.ndarray:
    """The time of each moment. A time that steps back, as between threads, is replaced by the latest time before it."""
    return np.concatenate([[0], np.maximum.accumulate(times) - times[0]])


def _at_end(history: DeviceHistory, lives: Lifetimes) -> np.ndarray:
    """The row of each block in the history's blocks at the end, or -1."""
    found = np.full(len(lives), -1, dtype=np.int32)
    if len(history.blocks):
        order = np.argsort(history.blocks.address, kind='stable')
        address = history.blocks.address[order]
        live = np.flatnonzero(lives.completed == lives.events)
        place = np.minimum(np.searchsorted(address, lives.address[live]), len(order) - 1)
        same = address[place] == lives.address[live]
        found[live[same]] = order[place[same]]
    return found


def _by_birth(history: DeviceHistory, lives: Lifetimes, found: Categories) -> np.ndarray:
    """All blocks with dtype ``LIFE``, in order of ``born``; those from before the recording largest first."""
    rows = np.zeros(len(lives), dtype=LIFE)
    rows['born'], rows['died'] = lives.start + 1, lives.freed + 1
    for name in ('size', 'stack', 'module'):
        rows[name] = getattr(lives, name)
    for name in ('category', 'rule', 'tensor'):
        rows[name] = getattr(found, name)
    rows['at_end'] = _at_end(history, lives)
    return rows[np.lexsort((np.where(rows['born'] == 0, -rows['size'], 0), rows['born']))]


def _sums(rows: np.ndarray, lines: Lines, moments: np.ndarray, peak: int) -> SmallerBlocks:
    kinds = len(CATEGORIES)
    group = lines.of_stack[rows['stack']].astype(np.int64) * kinds + rows['category']
    at_peak = np.zeros(len(lines.frames) * kinds, dtype=np.int64)
    there = (rows['born'] <= peak) & (peak < rows['died'])
    np.add.at(at_peak, group[there], rows['size'][there])
    largest = np.argsort(-at_peak, kind='stable')[:_CURVES]
    largest = largest[at_peak[largest] > 0]
    curve = np.full(len(at_peak), len(largest))
    curve[largest] = np.arange(len(largest))
    return SmallerBlocks(
        blocks=len(rows),
        largest=int(rows['size'].max(initial=0)),
        moments=moments,
        lines=(largest // kinds).astype(np.int32),
        categories=(largest % kinds).astype(np.int32),
        sizes=sums_over_time(curve[group], len(largest) + 1, rows['born'], rows['died'], rows['size'], moments),
    )


def extremes(values: np.ndarray, spans: int) -> np.ndarray:
    """Indices of the largest and smallest value of each span, and the first and the last index, ascending."""
    count = len(values)
    if count <= 2 * spans:
        return np.arange(count)
    width = -(-count // spans)
    padded = np.append(values, np.full(width * spans - count, values[-1])).reshape(spans, width)
    begin = np.arange(spans) * width
    found = np.concatenate([[0, count - 1], begin + padded.argmax(axis=1), begin + padded.argmin(axis=1)])
    return np.unique(np.minimum(found, count - 1))
