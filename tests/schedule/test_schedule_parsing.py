"""Schedules: what is read from text and mappings, and mistakes in them."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

from composer_memprof.schedule import on_local_ranks, on_ranks, window
from composer_memprof.schedule.parsing import parse_schedule
from composer_memprof.schedule.spans import parse_span
from composer_memprof.schedule.windows import WindowSchedule


@pytest.mark.parametrize(
    ('text', 'seconds'), [('10m', 600), ('1h30m', 5400), ('90m', 5400), ('600sec', 600), ('45s', 45), ('2h', 7200)]
)
def test_wall_clock_lengths_are_read(text: str, seconds: int) -> None:
    span = parse_span(text, 'every')
    assert (span.value, span.unit) == (seconds, 'sec')


@pytest.mark.parametrize(
    ('make', 'words'),
    [
        (lambda: window('0ba'), ['active', "'0ba'"]),
        (lambda: window('-3ba'), ['active', "'-3ba'", 'negative']),
        (lambda: window('3bar'), ["'3bar'", "'ba'"]),
        (lambda: window('1.5ba'), ["'1.5ba'"]),
        (lambda: window('3ba', every='2ba'), ['every', 'overlap']),
        (lambda: window('3ba', every='0ba'), ['every']),
        (lambda: window('3ba', repeat=2), ['repeat', 'every']),
        (lambda: window('3ba', every='9ba', repeat=-1), ['repeat must be', 'not -1']),
        (lambda: on_ranks(), ['on_ranks']),
        (lambda: on_ranks(-1), ['on_ranks']),
        (lambda: on_ranks(0) & on_ranks(1), ['&']),
        (lambda: on_local_ranks(), ['on_local_ranks']),
        (lambda: on_local_ranks(-1), ['on_local_ranks']),
        (lambda: parse_schedule({'active': '3ba', 'local_ranks': ['x']}), ['schedule.local_ranks']),
        (lambda: window('2ba') & window('2ba', skip='5ba'), ['&']),
        (lambda: window('2ba', every='4ba') & window('2ba', skip='2ba', every='4ba'), ['&']),
        (lambda: parse_schedule({'activ': '3ba'}), ['schedule.activ', "'active'"]),
        (lambda: parse_schedule({'skip': '3ba'}), ['schedule', 'active']),
        (lambda: parse_schedule({'active': '3ba', 'stages': ['evla']}), ['schedule.stages', "'evla'", "'eval'"]),
        (lambda: parse_schedule({'active': '3ba', 'ranks': ['x']}), ['schedule.ranks']),
        (lambda: parse_schedule('3ba'), ['schedule', "'3ba'"]),
    ],
)
def test_a_mistake_is_one_line_that_names_it(make: Any, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    message = str(caught.value)
    assert '\n' not in message
    assert all(word in message for word in words), message


def test_a_mapping_has_a_key_for_every_field_of_a_window() -> None:
    assert {field.name for field in fields(WindowSchedule)} == set(inspect.signature(window).parameters)
