"""The map of the segments: it adds up to what is reserved, whatever lies in them, and stays small."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from composer_memprof.analysis.memory.pictures.segment_map import ALLOCATED, AWAITING, FREE, SegmentMap, segment_map
from composer_memprof.analysis.snapshot.loading import read_snapshot

STATES = {'active_allocated': ALLOCATED, 'active_awaiting_free': AWAITING, 'inactive': FREE}


@st.composite
def held(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Segments of blocks one after the other, in several pools and streams."""
    segments = []
    for number in range(draw(st.integers(1, 12))):
        states = draw(st.lists(st.sampled_from(sorted(STATES)), max_size=6))
        address = begin = (number + 1) << 20
        blocks = []
        for state in states:
            size = 512 * draw(st.integers(1, 4))
            blocks.append({'address': address, 'size': size, 'state': state, 'frames': []})
            address += size
        total = address - begin + 512 * draw(st.integers(0 if blocks else 1, 3))
        kind = {'segment_type': draw(st.sampled_from(['large', 'small'])), 'stream': draw(st.integers(0, 2))}
        segments.append({'device': 0, 'address': begin, 'total_size': total, 'blocks': blocks, **kind})
    return segments


def mapped(segments: list[dict[str, Any]], most_pieces: int = 10**6) -> SegmentMap:
    # An event, so that a device of empty segments alone counts too.
    trace = [{'action': 'segment_alloc', 'addr': 0, 'size': 0, 'frames': []}]
    (history,) = read_snapshot({'device_traces': [trace], 'segments': segments}).devices
    return segment_map(history, most_pieces)


@settings(max_examples=60, deadline=None)
@given(segments=held(), most_pieces=st.integers(0, 60))
def test_whatever_is_drawn_the_map_adds_up_to_what_is_reserved(
    segments: list[dict[str, Any]], most_pieces: int
) -> None:
    found = mapped(segments, most_pieces)
    reserved = sum(segment['total_size'] for segment in segments)
    assert found.reserved == reserved
    assert found.allocated + found.awaiting + found.free_in_empty + found.free_in_split == reserved
    assert len(found.piece_size) <= most_pieces
    left_out = sum(sum(group.sizes_left_out) for group in found.groups)
    assert int(found.size.sum()) + left_out == reserved
    assert len(found.size) + sum(group.left_out for group in found.groups) == len(segments)
    for number, size in enumerate(found.size.tolist()):
        assert int(found.piece_size[found.piece_segment == number].sum()) == size
    for group in found.groups:
        here = [s for s in segments if (s['segment_type'], s['stream']) == (group.pool, group.stream)]
        sums = [sum(b['size'] for s in here for b in s['blocks'] if STATES[b['state']] == state) for state in (1, 2)]
        assert list(group.sizes[1:]) == sums
        assert sum(group.sizes) == sum(s['total_size'] for s in here)


def test_what_is_free_is_told_from_empty_segments_and_between_blocks() -> None:
    def block(address: int, size: int, state: str = 'active_allocated') -> dict[str, Any]:
        return {'address': address, 'size': size, 'state': state, 'frames': []}

    found = mapped(
        [
            {'device': 0, 'address': 0, 'total_size': 4096, 'blocks': [block(512, 1024), block(2048, 512)]},
            {'device': 0, 'address': 8192, 'total_size': 1024, 'blocks': [block(8192, 1024, 'inactive')]},
        ]
    )
    assert (found.free_in_split, found.free_in_empty, found.empty_segments, found.largest_free) == (2560, 1024, 1, 1536)
    assert found.piece_size.tolist() == [512, 1024, 512, 512, 1536, 1024]
    assert found.piece_state.tolist() == [FREE, ALLOCATED, FREE, ALLOCATED, FREE, FREE]
    assert found.piece_block.tolist() == [-1, 0, -1, 1, -1, -1]


def test_of_very_many_pools_the_smallest_are_put_together() -> None:
    segments = [
        {'device': 0, 'address': n << 20, 'total_size': 512 * (100 - n), 'stream': n, 'blocks': []} for n in range(60)
    ]
    groups = mapped(segments).groups
    assert [group.others for group in groups] == [0] * 40 + [20]
    assert groups[-1].segments == 20
