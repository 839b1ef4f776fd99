"""CONTRIBUTING's example of a new callback, followed to the letter in a copy of the project."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import child_environment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'```(\w+)\n(.*?)```\n', re.DOTALL)


def test_the_example_of_a_new_callback_works_as_it_is_written(tmp_path: Path) -> None:
    text = (ROOT / '.github/CONTRIBUTING.md').read_text()
    blocks = BLOCK.findall(text.partition('## Add a callback')[2].partition('## What may never change')[0])
    copy = tmp_path / 'copy'
    ignored = shutil.ignore_patterns('__pycache__', 'node_modules', 'benchmarks')
    for folder in ('composer_memprof', 'tests', 'yamls'):
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=ignored)
    made = []
    for language, code in blocks:
        first, _, rest = code.partition('\n')
        if language == 'python' and first.startswith('# '):
            made.append(copy / first.removeprefix('# '))
            made[-1].write_text(rest)
        elif language == 'python':
            registry = copy / 'composer_memprof/callbacks/__init__.py'
            registry.write_text(registry.read_text() + code)
        elif language == 'yaml':
            config = copy / 'yamls/everything.yaml'
            config.write_text(config.read_text().replace('callbacks:\n', f'callbacks:\n{code}', 1))
    assert [path.name for path in made] == ['open_files.py', 'open_files.py', 'test_open_files.py']

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, '-m', *arguments],
            cwd=copy,
            env={**child_environment(), 'PYTHONPATH': str(copy)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    contract = 'OpenFiles and (bit_identical or without_arguments or bug or refused_at_construction)'
    files = [f'tests/callbacks/framework/test_{name}.py' for name in ('callbacks', 'mistakes', 'windows')]
    chosen = f'open_files_are_counted or ({contract})'
    printed = run('pytest', '-v', '-p', 'no:cacheprovider', '-k', chosen, 'tests/callbacks/test_open_files.py', *files)
    assert 'failed' not in printed
    assert re.search(r'/test_open_files\.py::.* PASSED', printed), printed
    assert re.search(r'/test_callbacks\.py::.*OpenFiles.* PASSED', printed), printed
    (command,) = re.findall(r'composer-memprof (train .*)\n', text)
    listed = run('composer_memprof', *command.split(), 'max_duration=3ba')
    assert 'open_files' in listed and 'host_rss' not in listed
    assert list((copy / 'runs/everything').glob('*.open_files.jsonl'))
