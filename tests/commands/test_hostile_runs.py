"""Every command ends soon, with one line, whatever lies in a run's folder: ``make bench ARGS=hostile`` reads 2,000."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import child_environment
from tests.support.processes import warm_python
from tests.support.recordings.hostile_runs import HOSTILE_IN_PAGE, clear, hostile_run, real_run

pytestmark = pytest.mark.slow

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
    ['report', 'other'],
    ['diff', 'other'],
    ['inspect'],
    ['inspect', '--html', 'run/page.html'],
    ['inspect', '--json'],
)
#: How many processes read at once.
AT_ONCE = 2


def read_with(command: list[str], place: Path, seed: int) -> float:
    """Run a command on the folder ``run`` of hostile files, in ``place``. Returns the seconds that it took."""
    before = {path.name for path in place.iterdir()}
    words = [sys.executable, '-m', 'composer_memprof', command[0], 'run', *command[1:]]
    settings = {'env': child_environment(), 'cwd': place, 'stdin': subprocess.DEVNULL, 'capture_output': True}
    seconds = SECONDS
    for _ in range(2):  # once more if it was slow: other processes may have had the machine
        if seconds >= SECONDS:
            begin = time.monotonic()
            done = warm_python.run(words, timeout=90, **settings)
            seconds = time.monotonic() - begin
    said = done.stderr.decode(errors='replace')
    shown = done.stdout.decode(errors='replace')
    what = f'seed {seed}: {" ".join(command)}: exit code {done.returncode} after {seconds:.1f} s\n{said[-2000:]}'
    assert seconds < SECONDS and done.returncode in (0, 1, 2), what
    lines = 1 + ('--simulate' in command)  # one more: why nothing was simulated
    assert command[0] == 'push' or len(said.splitlines()) <= lines, what  # push has a line for each file
    assert 'Traceback' not in said and said.replace('\n', '').isprintable(), what
    unprintable = [line for line in shown.split('\n') if not line.isprintable()]
    assert not unprintable, f'{what}\n{unprintable}'
    page = place / 'report.html' if 'other' in command else place / 'run/report.html'
    for path in (page, place / 'run/page.html'):
        if path.is_file():
            found = [text for text in HOSTILE_IN_PAGE if text in path.read_text(encoding='utf-8')]
            assert not found, f'{what}\n{found} in {path}'
            path.unlink()
    after = {path.name for path in place.iterdir()}
    assert after == before, f'{what}\n{after - before}'
    return seconds


def read_hostile_runs(first: int, count: int, every_command: bool) -> None:
    """Read ``count`` folders, two at once: each with one command in turn, or with every command."""
    warm_python.run([sys.executable, '-c', ''], env=child_environment())  # starts the server
    begin, free = time.monotonic(), [Path(f'place{number}') for number in range(AT_ONCE)]

    def read(seed: int) -> tuple[float, int, str]:
        place = free.pop()
        place.mkdir(exist_ok=True)
        folders = [hostile_run(place / name, number) for name, number in (('run', seed), ('other', seed + 1))]
        commands = COMMANDS if every_command else [COMMANDS[seed % len(COMMANDS)]]
        slowest = max((read_with(command, place, seed), seed, ' '.join(command)) for command in commands)
        for folder in folders:
            clear(folder)
        free.append(place)
        return slowest

    real_run()  # trains it once
    with ThreadPoolExecutor(AT_ONCE) as pool:
        slowest = max(pool.map(read, range(first, first + count)))
    print(f'  {count} folders in {time.monotonic() - begin:.0f} s; the slowest took {slowest[0]:.1f} s: {slowest[1:]}')


def test_every_command_ends_with_one_line_whatever_the_files_hold() -> None:
    read_hostile_runs(0, 70, every_command=False)
