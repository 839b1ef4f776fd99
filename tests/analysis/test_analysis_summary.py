"""The ``.summary.json`` beside a snapshot: it is read as it was written, and untrusted values are checked."""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.memory.summary import (
    VERSION,
    SnapshotSummary,
    read_summary,
    summary_of,
    write_summary,
)
from composer_memprof.analysis.snapshot.loading import read_snapshot
from composer_memprof.analysis.typed_json import FormatError
from tests.support.recordings.damage import the_content
from tests.support.recordings.snapshots import without_stacks

TEXTS = st.text().filter(str.isprintable)
INTEGERS = st.integers(-(2**63) + 1, 2**63 - 1)


@functools.cache
def summaries(kind: Any = SnapshotSummary) -> st.SearchStrategy[Any]:
    """Any value of a type that occurs in a summary."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Union:
        return st.none() | summaries(arguments[0])
    if origin is list:
        return st.lists(summaries(arguments[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(TEXTS, summaries(arguments[1]), max_size=2)
    if dataclasses.is_dataclass(kind):
        return st.builds(kind, **{name: summaries(of) for name, of in typing.get_type_hints(kind).items()})
    return {int: INTEGERS, str: TEXTS, bool: st.booleans()}[kind]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(summary=summaries())
def test_a_summary_that_was_written_is_read(summary: SnapshotSummary) -> None:
    Path('x.summary.json').write_text(json.dumps(summary.as_dict()))
    assert read_summary(Path('x.summary.json')) == summary


@pytest.mark.parametrize('content', [the_content(), without_stacks(), {'device_traces': [], 'segments': []}])
def test_the_summary_of_a_snapshot_is_read_as_it_was_made(content: Any) -> None:
    snapshot = read_snapshot(content)
    write_summary(snapshot, Path('x.summary.json'))
    assert read_summary(Path('x.summary.json')) == summary_of(report_on(snapshot))


def test_the_file_has_the_keys_that_it_always_had_and_a_version() -> None:
    write_summary(read_snapshot(the_content()), Path('x.summary.json'))
    summary = json.loads(Path('x.summary.json').read_text())
    assert set(summary) == {'meta', 'error', 'oom', 'devices', 'devices_left_out', 'version', 'settings', 'whole'}
    assert set(summary['meta']) == {'device', 'torch', 'recorder', 'rank', 'simulated'}
    assert set(summary['oom']) == {
        *('device', 'requested', 'allocated', 'reserved', 'free', 'total', 'message'),
        *('events', 'batch', 'phase', 'asked'),
    }
    (device,) = summary['devices']
    assert set(device) == {
        *('device', 'peak', 'categories', 'at_failure', 'holders', 'allocated_at_end', 'reserved_peak'),
        *(
            'idle_at_peak',
            'largest_hole',
            'steady',
            'growing',
            'rss_peak',
            'memory',
            'modules',
            'phases',
            'growth_unit',
            'growing_bytes',
            'growing_per_batch',
            'growing_places',
        ),
    }
    assert set(device['peak']) == {'bytes', 'event', 'events', 'time_us', 'batch', 'phase', 'allocated_before'}
    assert set(device['at_failure']) == {'bytes', 'batch', 'phase', 'categories'}
    assert set(device['holders'][0]) == {'bytes', 'blocks', 'category', 'at'}


def written(**changes: Any) -> Path:
    """Write a summary with some values changed; ``__`` in a key separates the steps to it."""
    summary = summary_of(report_on(read_snapshot(the_content()))).as_dict()
    for key, value in changes.items():
        *way, last = key.split('__')
        where: Any = summary
        for step in way:
            where = where[int(step)] if isinstance(where, list) else where[step]
        where[last] = value
    Path('x.summary.json').write_text(json.dumps(summary))
    return Path('x.summary.json')


def test_one_without_a_version_has_version_1_and_unknown_keys_of_a_newer_one_are_ignored() -> None:
    path = written(version=VERSION + 1, unheard_of=[1], devices__0__peak__unheard_of='x')
    assert read_summary(path).version == VERSION + 1
    values = json.loads(path.read_text())
    del values['version']
    path.write_text(json.dumps(values))
    assert read_summary(path).version == 1


@pytest.mark.parametrize(
    ('changes', 'words'),
    [
        ({'meta': []}, ['meta must be a mapping', 'a list']),
        ({'error': 3}, ['error must be text', 'not 3']),
        ({'devices': {}}, ['devices must be a list', 'a dict']),
        ({'devices__0__peak': None}, ['peak must be a mapping', 'not None']),
        ({'devices__0__peak__bytes': True}, ['bytes must be a whole number', 'not True']),
        ({'devices__0__peak__bytes': 1.5}, ['bytes must be a whole number', 'not 1.5']),
        ({'devices__0__peak__bytes': 2**63}, ['bytes must be a whole number']),
        ({'devices__0__peak__bytes': float('nan')}, ['bytes must be a whole number', 'not nan']),
        ({'devices__0__steady': 1}, ['steady must be true or false', 'not 1']),
        ({'devices__0__categories': {'activation': 'x'}}, ['categories must be a whole number', "not 'x'"]),
        ({'devices__0__holders': [{}]}, ['holders has no bytes']),
        ({'oom__asked': ['x', None]}, ['asked must be text', 'not None']),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(FormatError) as caught:
        read_summary(written(**changes))
    assert '\n' not in str(caught.value)
    assert all(word in str(caught.value) for word in ['x.summary.json is not a summary', *words]), str(caught.value)


@pytest.mark.parametrize('content', [b'', b'\xff', b'[1]', b'{"meta"', b'[' * 100_000, b'9' * 10_000, b' ' * (1 << 21)])
def test_a_file_of_another_kind_is_refused_in_one_line(content: bytes) -> None:
    Path('x').write_bytes(content)
    with pytest.raises(FormatError) as caught:
        read_summary(Path('x'))
    assert '\n' not in str(caught.value)


def test_what_a_terminal_can_not_show_is_replaced() -> None:
    assert read_summary(written(error='\x1b[2J\ud800')).error == '?[2J?'
