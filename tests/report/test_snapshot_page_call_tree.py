"""The page of a snapshot in a browser: its tree of call stacks."""

from __future__ import annotations

from typing import Any

import pytest

from composer_memprof.analysis.snapshot.model import Snapshot
from tests.benchmarks.analysis.made_up import training_snapshot
from tests.support.recordings.snapshot_pages import MIB, TORCH, frame, loaded

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
