"""The page of a snapshot: what it draws adds up, and a person can read it in a browser."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_memprof.analysis.memory.pictures.timeline import extremes, lines_of, sum_up_smaller, timeline_of
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.analysis.snapshot.model import Snapshot
from composer_memprof.recorders.allocations.cpu_allocations import PROFILE_ARGUMENTS, snapshot_of
from composer_memprof.recorders.kineto import KinetoRecorder
from composer_memprof.report.html.snapshot.page import snapshot_page, write_snapshot_page
from tests.benchmarks.analysis.made_up import training_snapshot
from tests.support.snapshots import without_stacks

REAL = Path(__file__).parents[3] / 'shared' / 'data' / 'snapshots'
MIB = 1 << 20
TORCH = {'filename': '/x/lib/python3.11/site-packages/torch/nn/functional.py', 'line': 1, 'name': 'linear'}
HOSTILE = '</script><img src=x onerror="window.taken=1"><!--'


def frame(name: str, line: int = 7) -> dict[str, Any]:
    return {'filename': '/home/me/train.py', 'line': line, 'name': name}


def loaded(content: dict[str, Any]) -> Snapshot:
    Path('x.pickle').write_bytes(pickle.dumps(content, protocol=4))
    return load_snapshot(Path('x.pickle'))


def recorded(*rows: tuple[str, int, int, str], devices: int = 1, **ours: Any) -> Snapshot:
    """A snapshot of events a millisecond apart, each an action, an address, bytes and the function it is from."""
    trace = [
        {'action': action, 'addr': address, 'size': size, 'time_us': 1000 * number, 'frames': [TORCH, frame(name)]}
        for number, (action, address, size, name) in enumerate(rows, start=1)
    ]
    return loaded({'device_traces': [trace] * devices, 'segments': [], 'composer_memprof': ours})


def a_step(big: str = 'big_layer') -> Snapshot:
    """64 MiB over nearly all the time, and for half of it 16 MiB on top."""
    return recorded(
        ('alloc', 1 << 30, 64 * MIB, big),
        *(('alloc', n, 1000, 'little') for n in range(1, 5)),
        ('alloc', 2 << 30, 16 * MIB, 'head'),
        *(('free_completed', n, 1000, 'little') for n in range(1, 5)),
        ('free_completed', 2 << 30, 16 * MIB, 'head'),
        *(('alloc', n, 1000, 'little') for n in range(1, 9)),
        phases=[[500, 3, 'forward'], [9500, 3, 'backward'], [15000, 4, 'forward']],
        tensors=[[20_000, 1 << 30, 64 * MIB, 'parameter', 'blocks.0.weight']],
    )


# -- what is drawn ------------------------------------------------------------------------------------------------


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


# -- the file -----------------------------------------------------------------------------------------------------


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


# -- in a browser -------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(visit: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Opens the page of a snapshot."""

    def open_page(snapshot: Snapshot, title: str = 'a step', width: int = 1400, **settings: Any) -> Any:
        path = tmp_path / 'page.html'
        write_snapshot_page(snapshot, path, title, **settings)
        page = visit(path, width)
        page.wait_for_selector('body[data-drawn]', timeout=15_000)
        return page

    return open_page


OPTIMIZER = {'filename': '/x/lib/python3.11/site-packages/torch/optim/adamw.py', 'line': 120, 'name': '_init_group'}


def called(*rows: tuple[int, list[dict[str, Any]]]) -> Snapshot:
    """A snapshot of blocks that stay, each of so many bytes and with its stack, innermost frame first."""
    trace = [
        {'action': 'alloc', 'addr': number << 40, 'size': size, 'time_us': 1000 * number, 'frames': frames}
        for number, (size, frames) in enumerate(rows, start=1)
    ]
    return loaded({'device_traces': [trace], 'segments': []})


def a_call_tree() -> Snapshot:
    """``main`` calls ``forward``, which asks for 48 MiB through torch and 16 MiB itself; and ``step`` for 16 MiB."""
    return called(
        (48 * MIB, [TORCH, frame('forward', 10), TORCH, TORCH, frame('main', 3)]),
        (16 * MIB, [frame('forward', 20), TORCH, TORCH, frame('main', 3)]),
        (16 * MIB, [OPTIMIZER, frame('step', 5)]),
    )


def cell(page: Any, words: str) -> Any:
    return page.locator('#flame .cell', has_text=words)


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


def place(page: Any, across: float, up: float) -> tuple[float, float]:
    """A point of the timeline, in shares of its width and height."""
    box = page.locator('#timeline').bounding_box()
    return box['x'] + 70 + (box['width'] - 76) * across, box['y'] + 18 + (box['height'] - 70) * (1 - up)


def time_range(page: Any) -> tuple[float, float]:
    page.wait_for_timeout(100)  # the next frame
    return float(page.input_value('#from')), float(page.input_value('#to'))


def test_the_peak_is_read_the_largest_band_clicked_and_its_stack_unfolded(opened: Any) -> None:
    page = opened(a_step())
    assert page.inner_text('.facts .peak strong') == '80.0 MiB'
    assert 'after event 6 of 19, 5.0 ms from the first, batch 3, forward' in page.inner_text('.facts .peak')
    assert page.inner_text('.drawn') == 'All 14 blocks are drawn exactly.'
    page.mouse.move(*place(page, 0.5, 0.3))
    assert '64.0 MiB' in page.inner_text('#tip')
    assert 'big_layer me/train.py:7' in page.inner_text('#tip')
    page.mouse.click(*place(page, 0.5, 0.3))
    chosen = page.inner_text('#chosen')
    for words in (
        '67,108,864 B',
        '0 µs, event 1, batch 3, forward',
        'parameter (a tensor of this category was seen in it)',
        'blocks.0.weight',
        'not while it was recorded',
    ):
        assert words in chosen
    assert '/home/me/train.py:7' in chosen
    assert 'functional.py' not in chosen  # torch's frames are folded
    page.click('#chosen summary')
    page.wait_for_selector('#chosen details li')  # filled in once it is open
    assert 'torch/nn/functional.py:1' in page.inner_text('#chosen details')


def test_the_wheel_a_drag_and_the_range_zoom_and_a_double_click_shows_all(opened: Any) -> None:
    page = opened(a_step())
    all_of_it = time_range(page)
    page.mouse.move(*place(page, 0.5, 0.5))
    page.mouse.wheel(0, -400)
    closer = time_range(page)
    assert all_of_it[0] < closer[0] < closer[1] < all_of_it[1]
    page.mouse.dblclick(*place(page, 0.5, 0.9))
    assert time_range(page) == all_of_it
    page.mouse.move(*place(page, 0.25, 0.5))
    page.mouse.down()
    page.mouse.move(*place(page, 0.5, 0.5), steps=4)
    page.mouse.up()
    begin, end = time_range(page)
    assert begin == pytest.approx(all_of_it[1] / 4, rel=0.02)
    assert end == pytest.approx(all_of_it[1] / 2, rel=0.02)
    page.fill('#from', '2')
    page.fill('#to', '3.5')
    page.press('#to', 'Enter')
    assert time_range(page) == (2, 3.5)
    page.select_option('#axis', 'event')
    assert time_range(page) == (3, 7)  # at least four events
    page.click('#reset')
    assert time_range(page) == (0, 20)


def test_filters_leave_what_is_large_and_what_is_looked_for(opened: Any) -> None:
    page = opened(a_step())
    rows = page.locator('#rows li')
    assert rows.count() == 3
    page.fill('#smallest', '1 MiB')
    assert [row.split('\n')[0] for row in rows.all_inner_texts()] == ['64.0 MiB', '16.0 MiB']
    page.fill('#find', 'HEAD')
    assert [row.split('\n')[0] for row in rows.all_inner_texts()] == ['16.0 MiB']
    page.fill('#smallest', 'many')
    assert page.locator('#smallest:invalid').count() == 1


def test_blocks_without_a_stack_are_told_apart_by_what_else_is_known_of_them(opened: Any) -> None:
    page = opened(loaded(without_stacks()))
    rows = page.locator('#rows li')
    assert [row.inner_text().split('\n')[-1] for row in rows.all()] == [
        'temporary, without a stack, while blocks.1 ran',
        'gradient, without a stack',
        'parameter, made before the recording',
        'temporary, without a stack, while blocks.0 ran',
    ]
    rows.nth(0).locator('button').click()
    assert '8.0 MiB' in page.inner_text('#chosen')
    page.select_option('#rows-by', 'call path')
    assert 'parameter, made before the recording' in page.inner_text('#rows')


def test_what_is_allocated_elsewhere_than_at_the_peak_can_be_listed_and_by_what_it_is_for(opened: Any) -> None:
    page = opened(a_step())
    page.mouse.click(*place(page, 0.9, 0.3))
    page.click('#at-moment')
    assert page.inner_text('#live-title').startswith('64.0 MiB allocated at 1')
    assert 'head' not in page.inner_text('#rows')
    page.click('#at-peak')
    assert 'parameter\n64.0 MiB' in page.inner_text('#legend')
    page.select_option('#rows-by', 'phase')
    assert 'allocated in forward' in page.inner_text('#rows')
    page.select_option('#rows-by', label='single block')
    assert page.locator('#rows li').count() == 6


def test_the_list_is_used_with_the_keyboard_alone(opened: Any) -> None:
    page = opened(a_step())
    page.focus('#rows-by')
    page.keyboard.press('Tab')
    page.keyboard.press('Enter')
    assert 'big_layer' in page.inner_text('#chosen')
    page.focus('#timeline')
    page.keyboard.press('+')
    begin, end = time_range(page)
    assert 0 < begin < end < 18
    page.keyboard.press('Escape')
    assert 'big_layer' not in page.inner_text('#chosen')


def test_names_from_the_file_stay_words(opened: Any) -> None:
    page = opened(a_step(HOSTILE), title=HOSTILE)
    page.mouse.click(*place(page, 0.5, 0.3))
    page.click('#chosen summary')
    page.wait_for_selector('#chosen details li')  # filled in once it is open
    assert HOSTILE in page.inner_text('#chosen')
    assert HOSTILE in page.inner_text('h1')
    assert HOSTILE in page.inner_text('#rows')
    assert page.locator('img').count() == 0
    assert page.evaluate('window.taken') is None


def test_each_device_has_its_timeline(opened: Any) -> None:
    rows = [('alloc', 1, 5 * MIB, 'here')]
    page = opened(recorded(*rows, devices=2, device='cuda'))
    page.select_option('#device', label='cuda 1')
    assert 'on cuda 1' in page.inner_text('.facts:not([hidden])')
    page.click('#rows button')
    assert 'here' in page.inner_text('#chosen')


def test_blocks_without_a_history_or_times_are_drawn(opened: Any) -> None:
    block = {'address': 1, 'size': 3 * MIB, 'state': 'active_allocated', 'frames': [frame('kept')]}
    segment = {'device': 0, 'address': 1, 'total_size': 4 * MIB, 'blocks': [block]}
    page = opened(loaded({'device_traces': [[]], 'segments': [segment]}))
    assert page.inner_text('.facts .peak strong') == '3.0 MiB'
    page.mouse.click(*place(page, 0.5, 0.3))
    assert 'kept' in page.inner_text('#chosen')


def test_smaller_blocks_are_told_by_their_line(opened: Any) -> None:
    page = opened(loaded(training_snapshot(events=60_000, stacks=200)), max_bytes=90_000)
    summed = page.locator('#rows li', has=page.locator('.blocks', has_text=re.compile(r'[+]|smaller')))
    summed.filter(has_text='layers.py').first.click()
    assert 'smaller blocks, hatched' in page.inner_text('#chosen')
    assert 'layers.py' in page.inner_text('#chosen')


def test_nothing_is_cut_off_on_a_narrow_screen(opened: Any) -> None:
    page = opened(a_step('a_function_with_quite_a_long_name_' * 4), width=600)
    page.mouse.click(*place(page, 0.5, 0.3))
    assert page.evaluate('document.documentElement.scrollWidth') <= 600


def test_a_million_events_open_at_once_in_at_most_5_mb(opened: Any) -> None:
    page = opened(loaded(training_snapshot(events=1_000_000)))
    assert Path('page.html').stat().st_size <= 5_000_000
    (paint,) = page.evaluate("performance.getEntriesByName('first-contentful-paint').map(entry => entry.startTime)")
    assert paint < 3000
    assert page.inner_text('.facts .peak strong').endswith('GiB')


def test_a_snapshot_of_this_cpu_leads_to_this_file(opened: Any) -> None:
    def step() -> None:
        big = torch.empty(1 << 22)
        torch.empty(10)
        del big

    with KinetoRecorder(**PROFILE_ARGUMENTS) as recorder:
        step()
    assert recorder.result is not None
    page = opened(loaded(snapshot_of(recorder.result)))
    assert page.inner_text('.facts .peak strong') == '16.0 MiB'
    page.click('#rows button')
    assert __file__ in page.inner_text('#chosen')


@pytest.mark.parametrize(('name', 'peak'), [('gpt_ctx128_forward', '18.2 GiB'), ('gpt_ctx128_fullstep', '51.3 GiB')])
def test_real_gpu_snapshots_have_their_peak_on_the_page(opened: Any, name: str, peak: str) -> None:
    if not (REAL / f'{name}.pickle').exists():
        pytest.skip('the snapshots are no part of the project')
    page = opened(load_snapshot(REAL / f'{name}.pickle'))
    assert page.inner_text('.facts .peak strong') == peak
    page.click('#rows button')
    assert page.inner_text('#chosen .size').endswith('GiB')


# -- by call stack ------------------------------------------------------------------------------------------------


def test_the_call_tree_is_as_wide_as_what_was_asked_for_and_names_torch_once(opened: Any) -> None:
    page = opened(a_call_tree())
    assert [text.split(' me/')[0] for text in page.locator('#flame .cell.own').all_inner_texts()] == [
        *('main', 'forward', 'forward', 'step')
    ]
    whole = page.locator('#flame .cell.all').bounding_box()['width']
    widths = {words: cell(page, words).bounding_box()['width'] / whole for words in ('main', 'train.py:10', 'step')}
    assert widths == pytest.approx({'main': 0.8, 'train.py:10': 0.6, 'step': 0.2}, abs=0.01)
    folded = page.locator('#flame .cell.folded')
    assert folded.all_inner_texts()[0] == 'linear nn/functional.py:1 and 1 more'
    assert folded.count() == 3
    page.check('#flame-unfold')
    assert folded.count() == 4


def test_a_piece_of_the_call_tree_is_pointed_at_and_chosen(opened: Any) -> None:
    page = opened(a_call_tree())
    cell(page, 'main').hover()
    tip = page.inner_text('#by-stack .tip')
    assert '64.0 MiB, 80.0 %' in tip and 'train.py:3' in tip and '2 blocks' in tip
    cell(page, 'train.py:10').click()
    chosen = page.inner_text('#chosen')
    assert '48.0 MiB' in chosen and '1 block' in chosen
    assert '/home/me/train.py:10' in chosen
    assert 'faint' in cell(page, 'step').get_attribute('class')
    assert 'faint' not in cell(page, 'main').get_attribute('class')
    page.click('#chosen button:text("Clear selection")')
    assert page.locator('#flame .faint').count() == 0


def test_what_is_chosen_elsewhere_stands_out_in_the_call_tree(opened: Any) -> None:
    page = opened(a_call_tree())
    page.locator('#rows button', has_text='step').click()
    assert 'faint' in cell(page, 'main').get_attribute('class')
    assert 'faint' not in cell(page, 'step').get_attribute('class')


def test_the_call_tree_is_zoomed_into_and_out_of(opened: Any) -> None:
    page = opened(a_call_tree())
    cell(page, 'train.py:10').dblclick()
    assert cell(page, 'step').count() == 0
    assert cell(page, 'main').bounding_box()['width'] == cell(page, 'train.py:10').bounding_box()['width']
    for _ in range(3):
        page.click('#flame-back')
    assert cell(page, 'step').count() == 1
    assert page.locator('#flame-back:disabled').count() == 1
    cell(page, 'main').click()
    page.click('#chosen button:text("Zoom in")')
    assert cell(page, 'step').count() == 0


def test_the_call_tree_is_used_with_the_keyboard_alone(opened: Any) -> None:
    page = opened(a_call_tree())
    page.focus('#flame .cell.all')
    page.keyboard.press('ArrowDown')
    page.keyboard.press('ArrowRight')
    assert '16.0 MiB, 20.0 %' in page.inner_text('#by-stack .tip')
    page.keyboard.press('Enter')
    assert 'step' in page.inner_text('#chosen')
    page.keyboard.press('ArrowLeft')
    page.keyboard.press('+')
    assert cell(page, 'step').count() == 0
    page.keyboard.press('-')
    assert cell(page, 'step').count() == 1
    page.keyboard.press('Escape')
    assert 'step' not in page.inner_text('#chosen')


def test_filters_hold_for_the_call_tree(opened: Any) -> None:
    page = opened(a_call_tree())
    page.fill('#find', 'step')
    assert cell(page, 'main').count() == 0
    assert '16.0 MiB at the peak, filtered' in page.inner_text('#flame .all')
    page.fill('#find', '')
    page.fill('#smallest', '20 MiB')
    assert page.locator('#flame .own').count() == 2


def test_smaller_blocks_stay_one_piece_of_the_call_tree(opened: Any) -> None:
    page = opened(loaded(training_snapshot(events=60_000, stacks=200)), max_bytes=120_000)
    piece = page.locator('#flame .cell.smaller')
    assert piece.count() == 1
    piece.click()
    assert 'smaller blocks, hatched' in page.inner_text('#chosen')


def test_the_librarys_frame_is_named_where_the_users_own_do_not_tell(opened: Any) -> None:
    page = opened(a_call_tree())
    row = page.locator('#rows button', has_text='step')
    assert row.locator('.where span').inner_text().strip() == '(in torch: torch/optim/adamw.py:120 _init_group)'
    assert page.locator('#rows .where span').count() == 1
    row.click()
    assert '(in torch: torch/optim/adamw.py:120 _init_group)' in page.inner_text('#chosen')


# -- the segments -------------------------------------------------------------------------------------------------


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


def test_each_failed_allocation_of_another_program_is_told_on_the_page() -> None:
    content = recorded(
        ('alloc', 1, 16 * MIB, 'early'),
        ('oom', 8 * MIB, 32 * MIB, 'asks'),
        ('oom', 9 * MIB, 31 * MIB, 'asks again'),
    )
    page = snapshot_page(content, 'x')
    first, last = (page.index(f'Out of memory ({number} of 2)') for number in (1, 2))
    assert last < first, 'the last one comes first'
    assert '31.0 MiB requested' in page[last:first] and 'asks again' in page[last:first]
    assert '32.0 MiB requested' in page[first:] and '8.0 MiB free on the device' in page[first:]
    assert page.count('class="to-failure"') == 1 and 'At the failure <strong>16.0 MiB' in page


# -- a failure ----------------------------------------------------------------------------------------------------


def a_failure() -> Snapshot:
    oom = {'device': 0, 'requested': 32 * MIB, 'free': 8 * MIB, 'reserved': 96 * MIB, 'message': 'no memory'}
    return recorded(
        ('alloc', 1 << 30, 64 * MIB, 'early'),
        ('free_completed', 1 << 30, 64 * MIB, 'early'),
        ('alloc', 2 << 30, 16 * MIB, 'late'),
        ('oom', 8 * MIB, 32 * MIB, 'asks'),
        ('free_completed', 2 << 30, 16 * MIB, 'late'),
        phases=[[0, 5, 'backward']],
        oom=oom,
        device='cuda',
    )


def test_a_failure_comes_first_and_lists_what_was_allocated_then(opened: Any) -> None:
    page = opened(a_failure())
    told = page.inner_text('#failure')
    assert told.startswith('Out of memory on cuda 0, batch 5, backward: 32.0 MiB requested')
    for words in ('8.0 MiB free', '96.0 MiB reserved', 'no memory', 'requested by /home/me/train.py:7 asks'):
        assert words in told
    assert page.inner_text('.to-failure') == 'At the failure 16.0 MiB'
    assert page.inner_text('#live-title').startswith('16.0 MiB allocated at 2 ms, event 3')
    assert 'late' in page.inner_text('#rows') and '16.0 MiB at the failure' in page.inner_text('#flame')
    page.click('#at-peak')
    assert page.inner_text('#live-title').startswith('64.0 MiB')
    assert 'early' in page.inner_text('#rows') and '64.0 MiB at the peak' in page.inner_text('#flame')
    page.click('#at-failure')
    assert page.get_attribute('#at-failure', 'aria-pressed') == 'true'
    assert 'late' in page.inner_text('#rows')


def test_the_moment_of_failure_is_marked_on_the_timeline(opened: Any) -> None:
    colour = """() => {
        const canvas = document.getElementById('timeline');
        const top = canvas.getContext('2d').getImageData(0, 0, canvas.width, 20 * devicePixelRatio).data;
        const [red, green, blue] = [179, 38, 30];
        let found = 0;
        for (let at = 0; at < top.length; at += 4) {
            if (top[at + 3] > 200 && top[at] === red && top[at + 1] === green && top[at + 2] === blue) found += 1;
        }
        return found;
    }"""
    assert opened(a_failure()).evaluate(colour) > 0
    assert opened(a_step()).evaluate(colour) == 0


def test_without_a_failure_there_is_no_button_for_it(opened: Any) -> None:
    page = opened(a_step())
    assert not page.is_visible('#at-failure')
    assert page.locator('#failure').count() == 0
