"""The page of a snapshot in a browser: its timeline, its list of blocks, and a failure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.analysis.snapshot.model import Snapshot
from composer_memprof.recorders.allocations.cpu_allocations import PROFILE_ARGUMENTS, snapshot_of
from composer_memprof.recorders.kineto import KinetoRecorder
from composer_memprof.report.html.snapshot.page import snapshot_page
from tests.benchmarks.analysis.made_up import training_snapshot
from tests.support.recordings.snapshot_pages import HOSTILE, MIB, a_step, frame, loaded, place, recorded
from tests.support.recordings.snapshots import without_stacks

REAL = Path(__file__).parents[3] / 'shared' / 'data' / 'snapshots'


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


@pytest.mark.slow
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
