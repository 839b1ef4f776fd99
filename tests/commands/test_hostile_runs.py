"""Every command ends soon, with one line, whatever lies in a run's folder: ``make bench ARGS=hostile`` reads 2,000."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import child_environment
from tests.support.processes import warm_python
from tests.support.recordings.hostile_runs import clear, hostile_run

#: The longest that a command may take.
SECONDS = 10.0
COMMANDS = (
    ['ls'],
    ['ls', '--json'],
    ['push', '--yes'],
    ['push', '--yes', '--verify'],
    ['report', '--simulate'],
    ['report'],
    ['report', '--json'],
    ['inspect'],
    ['inspect', '--json'],
)


def read_with(command: list[str], folder: Path, seed: int) -> None:
    """Run a command on a folder of hostile files."""
    before, begin = {path.name for path in Path().iterdir()}, time.monotonic()
    words = [sys.executable, '-m', 'composer_memprof', command[0], str(folder), *command[1:]]
    done = warm_python.run(words, env=child_environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=90)
    seconds, said = time.monotonic() - begin, done.stderr.decode(errors='replace')
    what = f'seed {seed}: {" ".join(command)}: exit code {done.returncode} after {seconds:.1f} s\n{said[-2000:]}'
    assert seconds < SECONDS and done.returncode in (0, 1, 2), what
    lines = 1 + ('--simulate' in command)  # one more: why nothing was simulated
    assert command[0] == 'push' or len(said.splitlines()) <= lines, what  # push has a line for each file
    assert 'Traceback' not in said and said.replace('\n', '').isprintable(), what
    assert {path.name for path in Path().iterdir()} == before, what


def read_hostile_runs(first: int, count: int, every_command: bool) -> None:
    """Read ``count`` folders: each with one command in turn, or with every command."""
    for seed in range(first, first + count):
        folder = hostile_run(Path('run'), seed)
        for command in COMMANDS if every_command else [COMMANDS[seed % len(COMMANDS)]]:
            read_with(command, folder, seed)
        clear(folder)


def test_every_command_ends_with_one_line_whatever_the_files_hold() -> None:
    read_hostile_runs(0, 70, every_command=False)
