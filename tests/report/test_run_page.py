"""The page of a run in a browser: its controls, with the mouse and with the keyboard alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from composer_memprof.analysis.run_report.causes.kinds import Waiting
from composer_memprof.analysis.run_report.files import find_files
from composer_memprof.analysis.run_report.report import compared_paths, report_on_run
from composer_memprof.report.html.run.charts import charts_of
from composer_memprof.report.html.run.charts.chart import bytes_axis, limit
from composer_memprof.report.html.run.charts.module_tree import MODULE_COLORS
from composer_memprof.report.html.run.page import write_run_page
from composer_memprof.vocabulary import MEMORY_CATEGORIES, PHASE_COLORS
from tests.conftest import until
from tests.support.made_up_runs import MIB, run_of, write_files
from tests.support.recordings.snapshots import event, freed, plain, saved

PHASES = [[0, 0, 'forward'], [30, 0, 'backward']]
PARTS = {'blocks.0.up': 5, 'blocks.0.down': 3, 'blocks.1.up': 2, 'head': 4}


def page_of(ranks: int = 12) -> Path:
    """A page with a picture of each kind."""
    folder = run_of(Path('run'), ranks, rank2=2.0)
    trace = [
        event('alloc', 512, 4 * MIB, time=1),
        event('alloc', 8 * MIB, 2 * MIB, time=10),
        *freed(8 * MIB, 2 * MIB, time=20),
        event('alloc', 16 * MIB, MIB, time=35),
        *freed(512, 4 * MIB, time=40),
    ]
    name = 'rank2.9.memory_snapshot.pickle'
    saved(plain(*trace, device='cuda', recorder='allocator_history', phases=PHASES, memory=[7 * MIB]), f'run/{name}')
    kept = (folder / name).read_bytes()
    write_files(folder, 2, {'memory_snapshot': (name, '')})
    (folder / name).write_bytes(kept)
    modules = [{'name': name, 'bytes': size * MIB, 'inclusive_bytes': size * MIB} for name, size in PARTS.items()]
    write_files(folder, 2, {'saved_tensors_hook': ('s.json', {'total_bytes': 9, 'peak_bytes': 9, 'modules': modules})})
    for rank in range(ranks):
        seconds = {'total': {'p50': 1.0}, 'forward': {'p50': 0.4, 'mean': 0.4}, 'backward': {'mean': 0.6}}
        times = {'batches': 9, 'seconds': seconds, 'share': {'forward': 0.4, 'backward': 0.6}}
        write_files(folder, rank, {'step_times.summary': (f't{rank}.json', times)})
    write_run_page(report_on_run(find_files([folder])), Path('page.html'))
    return Path('page.html').absolute()


def data(page: Any, key: str, of: str) -> Any:
    return page.evaluate(f"document.querySelector('[data-figure={key}]').data{of}")


def wait_for_data(page: Any, key: str, condition: str) -> None:
    until(page, f"document.querySelector('[data-figure={key}]').data{condition}")


def test_filters_show_the_ranks_figures_rows_and_categories_that_are_asked_for(visit: Callable[..., Any]) -> None:
    page = visit(page_of())
    page.wait_for_selector('#ranks-memory-snapshot .main-svg')
    ranks = page.locator('#ranks-memory-snapshot').get_by_label('ranks', exact=True)
    ranks.press_sequentially('2, 10-11')
    wait_for_data(page, 'ranks-memory-snapshot', '[0].x.length === 3')
    assert data(page, 'ranks-memory-snapshot', '[0].x') == ['rank 2', 'rank 10', 'rank 11']
    page.keyboard.press('Tab')  # to the next control
    page.keyboard.type('blocks')
    wait_for_data(page, 'ranks-memory-snapshot', '[0].y.length === 2')
    assert data(page, 'ranks-memory-snapshot', '[0].z.length') == 2
    ranks.fill('')
    wait_for_data(page, 'ranks-memory-snapshot', '[0].x.length === 12')

    page.locator('#over-time select').focus()
    page.keyboard.press('ArrowDown')  # as a keyboard chooses from a list
    wait_for_data(page, 'over-time', "[1].visible === 'legendonly'")
    assert [data(page, 'over-time', f'[{trace}].visible') for trace in (0, 1)] == [None, 'legendonly']
    page.locator('#steps select').select_option('backward')
    wait_for_data(page, 'steps', "[0].visible === 'legendonly'")
    page.locator('#steps').get_by_label('ranks').fill('3')
    wait_for_data(page, 'steps', "[1].y.join() === 'rank 3'")

    page.locator('#files summary').press('Enter')
    page.locator('#files').get_by_label('files and kinds').fill('step_times')
    page.locator('#files').get_by_label('ranks').fill('1')
    assert page.locator('#files tbody tr:visible th').all_text_contents() == ['t1.json']
    assert page.locator('#files output').text_content().startswith('1 of ')
    page.locator('#files').get_by_label('ranks').fill('')
    assert page.locator('#files tbody tr:visible').count() == 12


def test_a_click_on_the_legend_takes_a_category_out_and_brings_it_back(visit: Callable[..., Any]) -> None:
    page = visit(page_of(2))
    page.wait_for_selector('#steps .legendtoggle')
    toggle = page.locator('#steps .legendtoggle').first
    toggle.click(force=True)
    wait_for_data(page, 'steps', "[0].visible === 'legendonly'")
    page.wait_for_timeout(500)  # two clicks within 0.3 s are plotly's double click
    page.locator('#steps .legendtoggle').first.click(force=True)
    wait_for_data(page, 'steps', '[0].visible === true')


def test_the_keyboard_zooms_a_treemap_and_goes_back(visit: Callable[..., Any]) -> None:
    page = visit(page_of(2))
    page.wait_for_selector('#saved .slicetext')
    page.locator('#saved .path button').focus()
    page.keyboard.press('Tab')
    assert page.evaluate("document.activeElement.dataset.figure === 'saved'")
    status = page.locator('#saved [role=status]')
    page.keyboard.press('ArrowRight')
    assert status.text_content() == 'blocks: 10.0 MiB, part 1 of 2. Enter opens it.'
    assert data(page, 'saved', '[0].marker.line.width.filter((each) => each > 0).length') == 1
    page.keyboard.press('Enter')
    wait_for_data(page, 'saved', "[0].level === 'blocks'")
    page.keyboard.press('ArrowRight')
    page.keyboard.press('Enter')
    wait_for_data(page, 'saved', "[0].level === 'blocks.0'")
    assert page.locator('#saved .path button').all_text_contents() == ['the model', 'blocks', '0']
    page.emulate_media(color_scheme='dark')
    page.wait_for_timeout(200)
    assert data(page, 'saved', '[0].level') == 'blocks.0', 'another theme keeps the place'
    page.keyboard.press('Backspace')
    wait_for_data(page, 'saved', "[0].level === 'blocks'")
    assert status.text_content().startswith('blocks.0: 8.0 MiB')
    page.keyboard.press('Escape')
    wait_for_data(page, 'saved', "[0].level === '(model)'")
    page.locator('#saved .slicetext', has_text='blocks').first.click(force=True)
    until(page, "document.querySelectorAll('#saved .path button').length === 2")
    page.locator('#saved .path button').first.click()
    wait_for_data(page, 'saved', "[0].level === '(model)'")


def test_the_memory_of_the_device_is_named_in_the_picture_or_said_to_be_far_above(visit: Callable[..., Any]) -> None:
    page = visit(page_of(2))
    page.wait_for_selector('#over-time .annotation-text')
    assert page.locator('#over-time .annotation-text').text_content() == 'memory of the device: 7.0 MiB'
    label, chart = (page.locator(part).bounding_box() for part in ('#over-time .annotation-text', '#over-time .chart'))
    assert chart['y'] < label['y'] and label['y'] + label['height'] < chart['y'] + chart['height']
    assert bytes_axis(6 * MIB, 7 * MIB)['range'][1] > 7 * MIB
    assert bytes_axis(6 * MIB, 80 << 30) == bytes_axis(6 * MIB)
    far = limit(80 << 30, 'memory', 6 * MIB)
    assert far['shapes'] == [] and far['annotations'][0]['text'] == 'memory: 80.0 GiB, far above'


def test_no_phase_has_the_color_of_a_category() -> None:
    colors = [category.color for category in MEMORY_CATEGORIES]
    assert len(set(colors)) == len(colors) and not set(colors) & set(PHASE_COLORS.values())
    assert not set(MODULE_COLORS) & {*colors, *PHASE_COLORS.values()}
    page_of(2)
    chart, *_ = charts_of(report_on_run(find_files([Path('run')])))
    assert {'forward (phase)', 'backward (phase)'} <= {trace['name'] for trace in chart.data}


def test_the_first_picture_shows_the_first_cause() -> None:
    page_of(2)
    report = report_on_run(find_files([Path('run')]))
    waiting = Waiting(rank=0, cost=0.8, seconds=0.8, batch=1.0, loader=None, line='')
    assert charts_of(report)[0].key == 'over-time'
    assert charts_of(replace(report, causes=[waiting]))[0].key == 'steps'


def test_a_link_shows_what_its_sender_saw(visit: Callable[..., Any]) -> None:
    page = visit(page_of(2))
    page.wait_for_selector('#saved .slicetext')
    page.locator('#over-time select').select_option('activation')
    page.locator('#ranks-memory-snapshot').get_by_label('figures').fill('blocks')
    page.locator('#saved .slicetext', has_text='blocks').first.click(force=True)
    until(page, "location.hash.includes('saved.part=blocks')")
    picture = page.locator('#over-time .nsewdrag')
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    page.mouse.move(box['x'] + box['width'] / 4, box['y'] + 50)
    page.mouse.down()
    page.mouse.move(box['x'] + box['width'] / 2, box['y'] + 60)
    page.mouse.up()
    until(page, "location.hash.includes('over-time.zoom')")
    address = page.url
    page.goto('about:blank')
    page.goto(address)
    page.wait_for_selector('#saved .path button:nth-child(2)')
    assert page.locator('#over-time select').input_value() == 'activation'
    wait_for_data(page, 'ranks-memory-snapshot', '[0].y.length === 2')
    assert data(page, 'saved', '[0].level') == 'blocks'
    begin, end = page.evaluate("document.querySelector('[data-figure=over-time]').layout.xaxis.range")
    whole = max(data(page, 'over-time', '[0].x'))
    assert 0 < begin < end < whole * 0.7
    picture.dblclick()
    until(page, "!location.hash.includes('zoom')")


def test_of_two_runs_both_are_drawn_on_one_scale(visit: Callable[..., Any]) -> None:
    run_of(Path('before'), 2)
    run_of(Path('after'), 2, rank1=3.0)
    write_run_page(compared_paths((Path('before'), 'before'), (Path('after'), 'after')), Path('page.html'))
    page = visit(Path('page.html').absolute())
    page.wait_for_selector('#both-memory-snapshot .main-svg')
    assert page.locator('main section[id]').nth(1).get_attribute('id') == 'both-memory-snapshot', (
        'first of the pictures'
    )
    before, after = (data(page, 'both-memory-snapshot', f'[{trace}]') for trace in (0, 1))
    assert (before['name'], after['name']) == ('before', 'this run')
    assert before['y'][0] == 'total: peak' and after['x'][0] > before['x'][0]
    largest = page.evaluate("document.querySelector('[data-figure=both-memory-snapshot]').layout.xaxis.range[1]")
    assert largest > after['x'][0]
    assert page.locator('#both-memory-snapshot .bartext').first.text_content().endswith('iB')


def test_more_ranks_than_cells_have_numbers_for_are_points_and_the_far_ones_are_named(
    visit: Callable[..., Any],
) -> None:
    page = visit(page_of(20))
    page.wait_for_selector('#all-memory-snapshot .main-svg')
    texts = data(page, 'all-memory-snapshot', '[0].text')
    assert [text for text in texts if text] == [texts[2]] and texts[2].startswith('rank 2: ')


def test_cells_of_a_few_ranks_have_their_numbers(visit: Callable[..., Any]) -> None:
    few = visit(page_of(3))
    few.wait_for_selector('#ranks-memory-snapshot .heatmap-label', state='attached')
    assert few.locator('#all-memory-snapshot').count() == 0
