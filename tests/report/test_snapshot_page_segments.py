"""The page of a snapshot in a browser: its segments."""

from __future__ import annotations

from typing import Any

from composer_memprof.analysis.snapshot.model import Snapshot
from tests.support.recordings.snapshot_pages import HOSTILE, MIB, frame, loaded, recorded


def segments() -> Snapshot:
    """A segment with a hole between blocks, an empty one, and one on another stream, whose block is awaited."""

    def block(address: int, size: int, state: str = 'active_allocated') -> dict[str, Any]:
        frames = [] if state == 'inactive' else [frame(f'of{address >> 20}')]
        return {'address': address, 'size': size, 'requested_size': size, 'state': state, 'frames': frames}

    def segment(address: int, total: int, blocks: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        kind = {'segment_type': 'large', 'stream': 0, 'is_expandable': False}
        return {'device': 0, 'address': address, 'total_size': total, 'blocks': blocks, **kind, **more}

    first = [block(0, 4 * MIB), block(4 * MIB, 6 * MIB, 'inactive'), block(10 * MIB, 10 * MIB)]
    held = [
        segment(0, 20 * MIB, first),
        segment(32 * MIB, 16 * MIB, [block(32 * MIB, 16 * MIB, 'inactive')], is_expandable=True),
        segment(64 * MIB, 2 * MIB, [block(64 * MIB, 2 * MIB, 'active_awaiting_free')], stream=7),
    ]
    trace = [
        {'action': 'alloc', 'addr': address, 'size': size, 'time_us': time, 'frames': [frame(f'of{address >> 20}')]}
        for time, (address, size) in enumerate([(0, 4 * MIB), (10 * MIB, 10 * MIB), (64 * MIB, 2 * MIB)])
    ]
    trace.append({'action': 'free_requested', 'addr': 64 * MIB, 'size': 2 * MIB, 'time_us': 9, 'frames': []})
    return loaded({'device_traces': [trace], 'segments': held, 'composer_memprof': {'device': 'cuda'}})


def on_the_map(page: Any, share: float, row: int = 0) -> tuple[float, float]:
    """A point of the segments' map, across in shares of its width, in the n-th row of bars of the first pool."""
    canvas = page.locator('#segment-map')
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    return box['x'] + box['width'] * share, box['y'] + 22 + 9 + 23 * row


def test_the_segments_are_told_in_words_and_pointed_at(opened: Any) -> None:
    page = opened(segments())
    words = page.inner_text('#segments-words')
    assert '38.0 MiB reserved in 3 segments: 14.0 MiB allocated' in words
    assert '2.0 MiB freed but still used by another stream' in words
    assert '6.0 MiB free beside blocks in split segments, 16.0 MiB free in 1 empty segment' in words
    assert 'The largest free block is 16.0 MiB' in words
    told = []
    for share, row in ((0.05, 0), (0.5, 0), (0.05, 2)):
        page.mouse.move(*on_the_map(page, share, row))
        told.append(page.inner_text('#segments .tip'))
    assert '4.0 MiB' in told[0] and 'of0' in told[0] and 'a segment of 20.0 MiB, Large on stream 0' in told[0]
    assert '6.0 MiB' in told[1] and 'fragmentation' in told[1]
    assert '16.0 MiB' in told[2] and 'the whole segment' in told[2] and 'expandable' in told[2]


def test_a_block_in_a_segment_is_chosen_as_elsewhere_and_what_is_free_tells_of_its_segment(opened: Any) -> None:
    page = opened(segments())
    page.mouse.click(*on_the_map(page, 0.05))
    assert '/home/me/train.py' in page.inner_text('#chosen') and '4,194,304 B' in page.inner_text('#chosen')
    page.mouse.click(*on_the_map(page, 0.5))
    chosen = page.inner_text('#chosen')
    assert '20.0 MiB' in chosen and 'largest free\n6.0 MiB' in chosen and '2 blocks' in chosen
    page.focus('#segment-map')
    for _ in range(2):
        page.keyboard.press('ArrowRight')
    page.keyboard.press('Enter')
    assert 'largest free\n6.0 MiB' in page.inner_text('#chosen')
    page.keyboard.press('Escape')
    assert 'largest free' not in page.inner_text('#chosen')


def test_a_cpu_has_no_segments_to_show(opened: Any) -> None:
    page = opened(recorded(('alloc', 1, 10 * MIB, 'f'), device='cpu'))
    assert page.locator('#segments').count() == 0


def test_of_thousands_of_segments_the_largest_are_drawn_and_the_others_as_one(opened: Any) -> None:
    held = [
        {'device': 0, 'address': n << 32, 'total_size': (n + 1) << 10, 'blocks': [], 'segment_type': HOSTILE}
        for n in range(1500)
    ]
    held[0]['blocks'] = [{'address': 0, 'size': 512, 'state': 'active_allocated', 'frames': []}]
    page = opened(loaded({'device_traces': [[]], 'segments': held}), max_bytes=200_000)
    words = page.inner_text('#segments-words')
    assert 'in 1,500 segments' in words
    assert 'are drawn one by one, the others as one segment for each pool and stream' in words
    page.focus('#segment-map')
    page.keyboard.press('ArrowRight')
    assert HOSTILE[:20] in page.inner_text('#segments .tip')
    assert page.locator('img').count() == 0
