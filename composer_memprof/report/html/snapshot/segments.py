"""The segments of a page: what it says of them, and the columns that ``snapshot_page_bars.js`` reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from composer_memprof.analysis.memory.segment_map import Group, SegmentMap
from composer_memprof.analysis.memory.timeline import AllocationTimeline as Timeline
from composer_memprof.analysis.snapshot.model import DeviceHistory
from composer_memprof.messages import human_bytes


def segments_in_words(found: SegmentMap) -> dict[str, Any]:
    """What the page says of the segments, and their pools."""
    left_out = sum(group.left_out for group in found.groups)
    words = (
        f'{human_bytes(found.reserved)} reserved in {_count(found.segments)}: {human_bytes(found.allocated)} allocated'
    )
    if found.awaiting:
        words += f', {human_bytes(found.awaiting)} freed and awaited by another stream'
    words += (
        f', {human_bytes(found.free_in_split)} free in split segments beside their blocks, '
        f'{human_bytes(found.free_in_empty)} free in {_count(found.empty_segments, "empty ")}. '
        f'The largest free block is {human_bytes(found.largest_free)}.'
    )
    if left_out:
        words += f' The {found.segments - left_out:,} largest are drawn one by one, the others of each pool and stream as one.'
    return {
        'words': words,
        'groups': [
            {'words': _group_in_words(group), 'leftOut': group.left_out, 'sizesLeftOut': group.sizes_left_out}
            for group in found.groups
        ],
    }


def _group_in_words(group: Group) -> str:
    free, allocated, awaiting = (human_bytes(size) for size in group.sizes)
    name = f'{group.pool or "Pool"} on stream {group.stream}'
    if group.others:
        name = f'{group.others:,} other pools and streams'
    words = f'{name[:1].upper()}{name[1:]}: {_count(group.segments)}, {allocated} allocated, {free} free'
    return words + (f', {awaiting} awaiting free' if group.sizes[2] else '')


def _count(count: int, what: str = '') -> str:
    return f'{count:,} {what}segment{"" if count == 1 else "s"}'


def segment_columns(found: SegmentMap, timeline: Timeline, history: DeviceHistory) -> dict[str, np.ndarray]:
    """``pieceBlock`` is the block that is drawn in the timeline; -1 of what is free, or not drawn there one by one."""
    drawn = np.full(len(history.blocks) + 1, -1, dtype=np.int32)  # the last for what is free
    rows = timeline.blocks['at_end']
    drawn[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
    sizes, size = np.unique(found.piece_size, return_inverse=True)
    return {
        'segmentSize': found.size,
        'segmentGroup': found.group,
        'segmentExpandable': found.expandable.astype(np.int32),
        'pieceSegment': found.piece_segment,
        'pieceSizes': sizes,
        'pieceSize': size.astype(np.int32),
        'pieceState': found.piece_state.astype(np.int32),
        'pieceBlock': drawn[found.piece_block],
    }
