"""The segments of a snapshot's page: a summary in text, and the columns that ``script/segment_layout.js`` reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from composer_memprof.analysis.memory.pictures.segment_map import Group, SegmentMap
from composer_memprof.analysis.memory.pictures.timeline import AllocationTimeline
from composer_memprof.analysis.snapshot.model import DeviceHistory
from composer_memprof.messages import human_bytes


def segment_texts(found: SegmentMap) -> dict[str, Any]:
    """The summary of all segments, and of those of each pool and stream."""
    left_out = sum(group.left_out for group in found.groups)
    text = (
        f'{human_bytes(found.reserved)} reserved in {_count(found.segments)}: {human_bytes(found.allocated)} allocated'
    )
    if found.awaiting:
        text += f', {human_bytes(found.awaiting)} freed but still used by another stream'
    text += (
        f', {human_bytes(found.free_in_split)} free beside blocks in split segments, '
        f'{human_bytes(found.free_in_empty)} free in {_count(found.empty_segments, "empty ")}. '
        f'The largest free block is {human_bytes(found.largest_free)}.'
    )
    if left_out:
        drawn = found.segments - left_out
        text += f' The {drawn:,} largest are drawn one by one, the others as one segment for each pool and stream.'
    return {
        'text': text,
        'groups': [
            {'text': _group_text(group), 'leftOut': group.left_out, 'leftOutBytes': group.sizes_left_out}
            for group in found.groups
        ],
    }


def _group_text(group: Group) -> str:
    free, allocated, awaiting = (human_bytes(size) for size in group.sizes)
    name = f'{group.pool or "Pool"} on stream {group.stream}'
    if group.others:
        name = f'{group.others:,} other pools and streams'
    text = f'{name[:1].upper()}{name[1:]}: {_count(group.segments)}, {allocated} allocated, {free} free'
    return text + (f', {awaiting} awaiting free' if group.sizes[2] else '')


def _count(count: int, what: str = '') -> str:
    return f'{count:,} {what}segment{"" if count == 1 else "s"}'


def segment_columns(found: SegmentMap, timeline: AllocationTimeline, history: DeviceHistory) -> dict[str, np.ndarray]:
    """The segments and their pieces. ``pieceBlock`` is the block in the timeline; -1 if free, or not drawn there."""
    drawn = np.full(len(history.blocks) + 1, -1, dtype=np.int32)  # the last one is for free pieces
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
