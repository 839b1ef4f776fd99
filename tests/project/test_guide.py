"""The guide, as the command prints it: on a node, in a terminal of 80 columns, fast."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from composer_memprof import __version__
from composer_memprof.cli import app
from composer_memprof.guide import pages
from tests.conftest import child_environment

NAMES = [page.name for page in pages()]


def printed(*arguments: str) -> str:
    ran = CliRunner().invoke(app, ['guide', *arguments], env={'COLUMNS': '80'}, catch_exceptions=False)
    assert ran.exit_code == 0
    return ran.stdout


def test_the_page_for_a_job_that_died_comes_first_and_each_page_is_listed_by_its_title() -> None:
    listed = printed()
    assert listed.startswith('Your job just died? composer-memprof guide index')
    assert all(page.name in listed and page.title in listed for page in pages())
    assert NAMES[0] == 'index'


@pytest.mark.parametrize('name', NAMES)
def test_a_page_is_readable_in_80_columns(name: str) -> None:
    text = printed(name)
    (page,) = (page for page in pages() if page.name == name)
    assert page.text.startswith(f'# {page.title}\n') and page.title in text
    assert max(map(len, text.splitlines())) <= 80
    assert not any(mark in text for mark in ('```', '](', '## '))


def test_an_unknown_page_is_one_line_that_names_the_pages() -> None:
    ran = CliRunner().invoke(app, ['guide', 'nothing'])
    assert ran.exit_code == 2 and all(name in ran.stderr.replace('\n', ' ') for name in NAMES)


def test_the_newest_version_that_the_changes_describe_is_this_one() -> None:
    (changes,) = (page.text for page in pages() if page.name == 'changes')
    assert changes.partition('## ')[2].partition('\n')[0] == __version__


def test_it_needs_no_torch_and_no_network() -> None:
    code = (
        'import sys, socket\n'
        'socket.socket = None\n'
        'from composer_memprof.cli import app\n'
        "app(['guide', 'index'], standalone_mode=False)\n"
        "assert not {'torch', 'composer', 'fsspec'} & set(sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, '-c', code], env=child_environment(), capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0 and 'Your job just died' in ran.stdout, ran.stderr
