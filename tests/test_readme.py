"""The README keeps what it promises: each feature that it lists has the tests that it names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROWS = [row for row in (ROOT / 'README.md').read_text().splitlines() if row.startswith('|') and '`test_' in row]


@pytest.mark.parametrize('row', ROWS, ids=range(len(ROWS)))
def test_each_listed_feature_has_its_tests(row: str) -> None:
    for command in re.findall('`(test_[^`]*)`', row.split('|')[-2]):
        name, *rest = shlex.split(command)
        tests = re.findall(r'^def (test_\w+)', (ROOT / 'tests' / name).read_text(), re.MULTILINE)
        for word in rest[1].split(' or ') if rest else ['']:
            assert any(word in test for test in tests), f'{name} has no test for {word!r}'


def test_every_feature_of_the_table_is_listed() -> None:
    assert len(ROWS) > 20
