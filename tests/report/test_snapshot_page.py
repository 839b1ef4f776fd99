"""The page of a snapshot: what it draws adds up, and the file lets nothing in."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_memprof.analysis.memory.pictures.timeline import extremes, lines_of, sum_up_smaller, timeline_of
from composer_memprof.report.html.snapshot.page import snapshot_page
from tests.benchmarks.analysis.made_up import training_snapshot
from tests.support.recordings.snapshot_pages import HOSTILE, MIB, a_step, loaded, recorded


@pytest.mark.parametrize('most_blocks', [0, 1, 50, 10**9])
def test_the_blocks_drawn_exactly_and_the_smaller_ones_come_to_the_total(most_blocks: int) -> None:
    snapshot = loaded(training_snapshot(events=30_000, stacks=60))
    (history,) = snapshot.devices
    whole = timeline_of(snapshot, history, spans=500)
    timeline = sum_up_smaller(whole, lines_of(snapshot.stacks), most_blocks)
    moments = timeline.smaller.moments
    assert timeline.peak in moments
    exact = np.array([timeline.live_blocks(moment)['size'].sum() for moment in moments[::97]])
    assert (exact + timeline.smaller.sizes.sum(axis=0)[::97] == timeline.total[moments[::97]]).all()
    assert (timeline.smaller.sizes >= 0).all()
    assert len(timeline.blocks) + timeline.smaller.blocks == len(whole.blocks)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=30),
    freed=st.lists(st.integers(0, 29), unique=True),
    most_blocks=st.integers(0, 30),
)
def test_what_is_summed_up_is_smaller_than_what_is_not(sizes: list[int], freed: list[int], most_blocks: int) -> None:
    rows = [('alloc', number, size, f'f{number % 3}') for number, size in enumerate(sizes)]
    rows += [('free_completed', number, sizes[number], '') for number in freed if number < len(sizes)]
    snapshot = recorded(*rows)
    timeline = sum_up_smaller(
        timeline_of(snapshot, snapshot.devices[0], spans=100), lines_of(snapshot.stacks), most_blocks
    )
    assert sorted(timeline.blocks['size'])[::-1] == sorted(sizes)[::-1][:most_blocks]
    assert timeline.smaller.largest <= min(timeline.blocks['size'], default=1000)
    live = dict.fromkeys(range(0), 0)
    for moment, (action, address, size, _) in enumerate(rows, start=1):
        live.pop(address, None) if action == 'free_completed' else live.update({address: size})
        drawn = timeline.live_blocks(moment)['size'].sum() + timeline.smaller.sizes[:, moment].sum()
        assert drawn == sum(live.values()) == timeline.total[moment]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=400), st.integers(1, 30))
def test_no_span_loses_its_highest_or_lowest_point(values: list[int], spans: int) -> None:
    kept = extremes(np.array(values), spans)
    assert {0, len(values) - 1} <= set(kept.tolist())
    width = -(-len(values) // spans)
    for begin in range(0, len(values), width):
        inside = [values[place] for place in kept if begin <= place < begin + width]
        span = values[begin : begin + width]
        assert (max(inside), min(inside)) == (max(span), min(span))


def test_the_page_refers_to_nothing_outside_and_lets_nothing_in() -> None:
    page = snapshot_page(a_step(HOSTILE), HOSTILE)
    assert not re.search(
        r'https?:|//[a-z]+\.|@import|<link|\bsrc=|\bhref=|\bfetch\(|XMLHttp', page.replace('src=x', '')
    )
    assert '<img' not in page
    assert page.count('</script>') == 2  # the data's and the script's
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy and "default-src 'none'" in policy[1] and 'unsafe' not in policy[1]


def test_a_page_that_may_be_small_sums_up_more_and_says_so() -> None:
    snapshot = loaded(training_snapshot(events=200_000, stacks=200))
    whole = snapshot_page(snapshot, 'x')
    assert 'blocks are drawn exactly' in whole
    for most in (len(whole) // 2, len(whole) // 3):
        page = snapshot_page(snapshot, 'x', max_bytes=most)
        assert len(page.encode()) <= most
        words = re.search(r'Of ([\d,]+) blocks the ([\d,]+) largest, ([\d.]+) % of the peak', page)
        assert words and int(words[2].replace(',', '')) > 100
        assert 'summed by line and category' in page


@pytest.mark.parametrize('content', [{'device_traces': [], 'segments': []}, {'device_traces': [[]], 'segments': []}])
def test_a_snapshot_without_a_history_has_a_page_that_says_so(content: dict[str, Any]) -> None:
    page = snapshot_page(loaded(content), 'nothing')
    assert 'No allocation was recorded' in page
    assert '<canvas' not in page


def test_what_the_snapshot_was_taken_for_is_said() -> None:
    oom = {'requested': 3 * MIB, 'free': MIB, 'message': HOSTILE}
    page = snapshot_page(recorded(('alloc', 1, 10, 'f'), oom=oom, error=f'OutOfMemoryError: {HOSTILE}'), 'x')
    assert 'Out of memory: 3.0 MiB requested' in page
    assert '1.0 MiB free on the device' in page
    assert 'OutOfMemoryError: &lt;/script&gt;' in page
    page = snapshot_page(
        recorded(('alloc', 1, 10, 'f'), error=f'ValueError: {HOSTILE}', phases=[[0, 3, 'forward']]), 'x'
    )
    assert 'Training failed, batch 3, forward' in page
    assert 'ValueError: &lt;/script&gt;' in page


def test_what_a_snapshot_can_not_tell_stands_below() -> None:
    page = snapshot_page(recorded(('alloc', 1, 10, 'f'), device='cpu'), 'x')
    assert 'A CPU has no caching allocator' in page
    assert 'The recording has no phases of training' in page
