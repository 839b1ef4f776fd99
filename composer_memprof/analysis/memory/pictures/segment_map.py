"""The layout of the segments at the end of the recording: blocks and free memory in order of address."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from composer_memprof.analysis.snapshot.model import DeviceHistory

#: Pools and streams with a group of their own, the largest; the others share one.
_MOST_GROUPS = 40
FREE, ALLOCATED, AWAITING = range(3)


@dataclass(frozen=True)
class Group:
    """The segments of one pool and stream, or of all smaller pools and streams together.

    Args:
        pool (str): its name.
        stream (int): its number.
        segments (int): number of segments.
        sizes (tuple[int, int, int]): bytes that are free, allocated, and freed but used by another stream.
        left_out (int): number of segments that are not drawn one by one.
        sizes_left_out (tuple[int, int, int]): as ``sizes``, in these segments.
        others (int): number of pools and streams together; 0 for a single one.
    """

    pool: str
    stream: int
    segments: int
    sizes: tuple[int, int, int]
    left_out: int
    sizes_left_out: tuple[int, int, int]
    others: int = 0


@dataclass(frozen=True)
class SegmentMap:
    """All segments in numbers, and the largest ones as pieces to draw. A piece is a block or free memory.

    Args:
        segments (int): number of segments.
        reserved (int): bytes of all segments.
        allocated (int): bytes in allocated blocks.
        awaiting (int): bytes in blocks that were freed and that another stream still uses.
        empty_segments (int): number of segments without any block.
        free_in_empty (int): bytes of these segments.
        free_in_split (int): free bytes in the other segments.
        largest_free (int): bytes of the largest free piece.
        groups (list[Group]): by pool and stream, largest first.
        size (ndarray): int64, of each drawn segment, in order of group and then largest first.
        group (ndarray): int32, for each drawn segment an index into ``groups``.
        expandable (ndarray): bool, for each drawn segment.
        piece_segment (ndarray): int32, for each piece the number of its drawn segment, ascending; within a segment,
            pieces are in order of address.
        piece_size (ndarray): int64, for each piece.
        piece_state (ndarray): int8, for each piece ``FREE``, ``ALLOCATED`` or ``AWAITING``.
        piece_block (ndarray): int32, for each piece its row in the history's ``blocks``; -1 if it is free.
    """

    segments: int
    reserved: int
    allocated: int
    awaiting: int
    empty_segments: int
    free_in_empty: int
    free_in_split: int
    largest_free: int
    groups: list[Group]
    size: np.ndarray
    group: np.ndarray
    expandable: np.ndarray
    piece_segment: np.ndarray
    piece_size: np.ndarray
    piece_state: np.ndarray
    piece_block: np.ndarray


def segment_map(history: DeviceHistory, most_pieces: int) -> SegmentMap:
    """The map of a device's segments. The largest are drawn one by one, in at most ``most_pieces`` pieces."""
    segments = history.segments
    home, begin, size, state, block = _pieces(history)
    count = len(segments)
    sums = np.zeros((count, 3), dtype=np.int64)
    np.add.at(sums, (home, state), size)
    in_use = np.bincount(home, weights=state != FREE, minlength=count) > 0
    group, names, others = _groups(history)
    pieces_of = np.bincount(home, minlength=count)
    largest_first = np.argsort(-segments.total_size, kind='stable')
    drawn = np.zeros(count, dtype=bool)
    drawn[largest_first[np.cumsum(pieces_of[largest_first] + 1) <= most_pieces]] = True
    groups = []
    for number, (pool, stream) in enumerate(names):
        here = group == number
        groups.append(
            Group(
                pool=pool,
                stream=stream,
                segments=int(here.sum()),
                sizes=_three(sums[here]),
                left_out=int((here & ~drawn).sum()),
                sizes_left_out=_three(sums[here & ~drawn]),
                others=others if number == _MOST_GROUPS else 0,
            )
        )
    order = np.lexsort((segments.address, -segments.total_size, group))
    order = order[drawn[order]]
    rank = np.full(count, -1, dtype=np.int64)
    rank[order] = np.arange(len(order))
    kept = np.flatnonzero(drawn[home])
    kept = kept[np.lexsort((begin[kept], rank[home[kept]]))]
    return SegmentMap(
        segments=count,
        reserved=int(segments.total_size.sum()),
        allocated=int(sums[:, ALLOCATED].sum()),
        awaiting=int(sums[:, AWAITING].sum()),
        empty_segments=int((~in_use).sum()),
        free_in_empty=int(sums[~in_use, FREE].sum()),
        free_in_split=int(sums[in_use, FREE].sum()),
        largest_free=int(size[state == FREE].max(initial=0)),
        groups=groups,
        size=segments.total_size[order],
        group=group[order].astype(np.int32),
        expandable=segments.expandable[order],
        piece_segment=rank[home[kept]].astype(np.int32),
        piece_size=size[kept],
        piece_state=state[kept].astype(np.int8),
        piece_block=block[kept].astype(np.int32),
    )


def _three(sums: np.ndarray) -> tuple[int, int, int]:
    free, allocated, awaiting = sums.sum(axis=0).tolist()
    return free, allocated, awaiting


def _groups(history: DeviceHistory) -> tuple[np.ndarray, list[tuple[str, int]], int]:
    """For each segment the number of its group; each group's pool and stream; how many share the last group."""
    segments = history.segments
    keys = np.stack([segments.pool.astype(np.int64), segments.stream], axis=1)
    found, which = np.unique(keys, axis=0, return_inverse=True)
    reserved = np.zeros(len(found), dtype=np.int64)
    np.add.at(reserved, which.ravel(), segments.total_size)
    order = np.argsort(-reserved, kind='stable')
    rank = np.empty(len(found), dtype=np.int64)
    rank[order] = np.arange(len(found))
    names = [(segments.pools[int(pool)], int(stream)) for pool, stream in found[order][: _MOST_GROUPS + 1]]
    return np.minimum(rank[which.ravel()], _MOST_GROUPS), names, len(found) - _MOST_GROUPS


def _pieces(history: DeviceHistory) -> tuple[np.ndarray, ...]:
    """Segment, begin, size, state and row of each block and each free piece. Blocks outside all segments are dropped."""
    segments, blocks = history.segments, history.blocks
    by_address = np.argsort(segments.address, kind='stable')
    starts = segments.address[by_address].astype(np.int64)
    ends = starts + segments.total_size[by_address]
    row = np.argsort(blocks.address, kind='stable')
    begin = blocks.address[row].astype(np.int64)
    end = begin + blocks.size[row]
    home = np.searchsorted(starts, begin, side='right') - 1
    inside = (home >= 0) & (end <= ends[np.maximum(home, 0)]) if len(starts) else np.zeros(len(row), dtype=bool)
    row, begin, end, home = row[inside], begin[inside], end[inside], home[inside]
    # There is a free piece before each block, and one after the last block of each segment. Some have no bytes.
    first = np.ones(len(row), dtype=bool)
    first[1:] = home[1:] != home[:-1]
    before = np.where(first, starts[home], np.concatenate([[0], end[:-1]]))
    last_end = starts.copy()
    np.maximum.at(last_end, home, end)
    free_home = np.concatenate([home, np.arange(len(starts))])
    free_begin = np.concatenate([before, last_end])
    free_size = np.concatenate([begin - before, ends - last_end])
    free = free_size > 0
    size = np.concatenate([end - begin, free_size[free]])
    state = np.concatenate([np.where(blocks.awaiting[row], AWAITING, ALLOCATED), np.full(int(free.sum()), FREE)])
    return (
        by_address[np.concatenate([home, free_home[free]])],
        np.concatenate([begin, free_begin[free]]),
        size,
        state,
        np.concatenate([row, np.full(int(free.sum()), -1)]),
    )
