"""Every block's life and the total over time, cut down to what a picture can hold: the largest blocks one by one.

A *moment* is the state after so many events: moment 0 is before the first, moment ``n`` after the last of ``n``.
A block lives from moment ``born`` up to, and without, moment ``died``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.categories import CATEGORIES, Categories, categories
from composer_memprof.analysis.memory.fragmentation import is_caching, reserved_over_time
from composer_memprof.analysis.memory.frames import own_frames, within_library
from composer_memprof.analysis.memory.lifetimes import Lifetimes, lifetimes
from composer_memprof.analysis.snapshot.model import DeviceHistory, Frame, Snapshot, Stack

#: ``died`` is one past the last moment where the block is still allocated at the end, ``born`` is 0 where it was
#: allocated before the recording; ``size`` in bytes; ``stack`` and ``module`` as in the snapshot, the next three as in
#: :class:`Categories`; ``at_end`` is the row of the history's ``blocks`` that it is at the end, or -1.
LIFE = np.dtype(
    [
        *(('born', 'i4'), ('died', 'i4'), ('size', 'i8'), ('stack', 'i4'), ('module', 'i4')),
        *(('category', 'i1'), ('rule', 'i1'), ('tensor', 'i4'), ('at_end', 'i4')),
    ]
)

#: Lines of code, by category, whose smaller blocks have a curve of their own: those that held most at the peak.
_CURVES = 24


@dataclass(frozen=True)
class Lines:
    """Stacks put together by the user's own line that each comes to first. ``of_stack``: int32, for each stack an
    index into ``frames``, where None stands for no line at all, and into ``within``, the library's frame that asked
    where the line does not tell.
    """

    frames: list[Optional[Frame]]
    within: list[Optional[Frame]]
    of_stack: np.ndarray


@dataclass(frozen=True)
class SmallerBlocks:
    """Blocks that are not drawn one by one, summed by the line that asked for them and by category.

    Args:
        blocks (int): how many there are.
        largest (int): bytes of the largest among them; 0 where there is none.
        moments (ndarray): int64; where the sums are known, ascending, from the first moment to the last.
        lines (ndarray): int32; the line of each curve, the largest at the peak first.
        categories (ndarray): int32; the category of each.
        sizes (ndarray): int64, a row for each curve and a last one for all else, a column for each moment.
    """

    blocks: int
    largest: int
    moments: np.ndarray
    lines: np.ndarray
    categories: np.ndarray
    sizes: np.ndarray


@dataclass(frozen=True)
class Timeline:
    """One device's memory over time. At each of ``smaller.moments`` the blocks drawn exactly and the sums of the
    smaller ones come to ``total``.

    Args:
        device (int): its index.
        total (ndarray): int64, bytes allocated at each moment.
        reserved (ndarray): int64, bytes in segments at each moment; None where the history does not tell.
        time_us (ndarray): int64, at each moment since the first event; None where the format has no times.
        peak (int): the first moment at which the total is largest.
        blocks (ndarray): of ``LIFE``, the largest ones, by ``born``.
        smaller (SmallerBlocks): the rest.
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
        """The blocks drawn exactly that are allocated at a moment."""
        return self.blocks[(self.blocks['born'] <= moment) & (moment < self.blocks['died'])]


def lines_of(stacks: Sequence[Stack]) -> Lines:
    """Put stacks with the same innermost own frame together; the first line is that of the empty stack."""
    index: dict[tuple[Optional[Frame], Optional[Frame]], int] = {}
    of_stack = []
    for stack in stacks:
        own = own_frames(stack)
        of_stack.append(index.setdefault((next(iter(own), None), within_library(stack, own)), len(index)))
    frames, within = zip(*index) if index else ((), ())
    return Lines(list(frames), list(within), np.array(of_stack, dtype=np.int32))


def timeline_of(snapshot: Snapshot, history: DeviceHistory, spans: int) -> Timeline:
    """One device's timeline with every block drawn exactly.

    ``spans``: if blocks are summed up later, then at the moments of the largest and smallest total of so many spans.
    """
    lives = lifetimes(history)
    total = lives.allocated()
    moments = extremes(total, spans)
    none = np.zeros(0, dtype=np.int32)
    return Timeline(
        device=history.device,
        total=total,
        reserved=reserved_over_time(history) if is_caching(snapshot, history) else None,
        time_us=_since_first(history.time_us) if history.has_times else None,
        peak=int(total.argmax()),
        blocks=_by_birth(history, lives, categories(snapshot, history, lives)),
        smaller=SmallerBlocks(0, 0, moments, none, none, np.zeros((1, len(moments)), dtype=np.int64)),
    )


def sum_up_smaller(timeline: Timeline, lines: Lines, most_blocks: int) -> Timeline:
    """Keep at most ``most_blocks`` exactly, the largest and of these the longest-lived, and sum up all others.

    ``timeline`` has to have every block still.
    """
    rows = timeline.blocks
    rank = np.lexsort((rows['born'].astype(np.int64) - rows['died'], -rows['size']))
    chosen = np.zeros(len(rows), dtype=bool)
    chosen[rank[:most_blocks]] = True
    smaller = _sums(rows[~chosen], lines, timeline.smaller.moments, timeline.peak)
    return dataclasses.replace(timeline, blocks=rows[chosen], smaller=smaller)


def _since_first(times: np.ndarray) -> np.ndarray:
    """At each moment. A clock that steps back, as between threads it may, stands still instead."""
    return np.concatenate([[0], np.maximum.accumulate(times) - times[0]])


def _at_end(history: DeviceHistory, lives: Lifetimes) -> np.ndarray:
    """For each life the row of the history's blocks that it is at the end, or -1."""
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
    """As ``LIFE``; those from before the recording, the largest first."""
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
    change = np.zeros((len(largest) + 1, len(moments) + 1), dtype=np.int64)
    np.add.at(change, (curve[group], np.searchsorted(moments, rows['born'])), rows['size'])
    np.subtract.at(change, (curve[group], np.searchsorted(moments, rows['died'])), rows['size'])
    return SmallerBlocks(
        blocks=len(rows),
        largest=int(rows['size'].max(initial=0)),
        moments=moments,
        lines=(largest // kinds).astype(np.int32),
        categories=(largest % kinds).astype(np.int32),
        sizes=np.cumsum(change, axis=1)[:, :-1],
    )


def extremes(values: np.ndarray, spans: int) -> np.ndarray:
    """Where each span of ``values`` is largest and smallest, ascending, and the first and the last index."""
    count = len(values)
    if count <= 2 * spans:
        return np.arange(count)
    width = -(-count // spans)
    padded = np.append(values, np.full(width * spans - count, values[-1])).reshape(spans, width)
    begin = np.arange(spans) * width
    found = np.concatenate([[0, count - 1], begin + padded.argmax(axis=1), begin + padded.argmin(axis=1)])
    return np.unique(np.minimum(found, count - 1))
