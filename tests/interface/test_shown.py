"""How results show themselves in a notebook: tables in its own colors, without scripts, whatever the names are."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from composer_memprof import MemprofError, load_snapshot
from composer_memprof.interface.shown import as_html
from tests.support.json_schemas import as_promised
from tests.support.recordings.snapshots import event, freed, plain, saved

HOSTILE = '<script>alert("1")</script>&'


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.names.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_lines_and_tables_are_escaped_and_take_the_colors_of_the_notebook() -> None:
    table = Table(title='sizes')
    table.add_column('name')
    table.add_column('size', justify='right')
    table.add_row(HOSTILE, '1.0 GiB')
    found = as_html(Group(Text(HOSTILE, style='bold'), Padding(Text('indented'), (0, 0, 0, 2)), table))
    tags = Tags(found)
    assert tags.text == [HOSTILE, 'indented', 'sizes', 'name', 'size', HOSTILE, '1.0 GiB']
    assert set(tags.names) == {'div', 'p', 'strong', 'table', 'thead', 'tbody', 'tr', 'th', 'td'}
    assert set(re.findall(r'(?:color|background):([\w-]+)', found)) == {'inherit', 'transparent'}
    assert 'text-align:right' in found


def test_the_report_on_a_snapshot_is_that_of_inspect() -> None:
    saved(plain(event('alloc', 512, 1 << 20), event('alloc', 1 << 30, 1 << 30), *freed(512, 1 << 20)))
    report = load_snapshot('x.pickle').report()
    assert report.peak is not None and report.peak.bytes == (1 << 30) + (1 << 20)
    values = report.to_dict()
    assert values['file']['path'] == 'x.pickle' and values['devices'][0]['peak']['bytes'] == report.peak.bytes
    assert str(report).startswith('Peak of device 0: 1.0 GiB allocated\n')
    tags = Tags(report._repr_html_())
    assert 'Peak of device 0: 1.0 GiB allocated' in tags.text and tags.names.count('table') >= 2


def test_a_report_keeps_to_the_schema_and_its_span() -> None:
    saved(plain(event('alloc', 512, 8, time=0), event('alloc', 1024, 8, time=4000)))
    snapshot = load_snapshot('x.pickle')
    as_promised('inspect', json.dumps(snapshot.report().to_dict()))
    first = snapshot.report(to_ms=2).peak
    assert first is not None and first.bytes == 8
    with pytest.raises(MemprofError):
        snapshot.report(from_ms=5000)


def test_a_file_that_is_no_snapshot_is_the_error_of_all_functions() -> None:
    Path('x.pickle').write_bytes(b'nothing')
    with pytest.raises(MemprofError, match='is not a memory snapshot'):
        load_snapshot('x.pickle')
