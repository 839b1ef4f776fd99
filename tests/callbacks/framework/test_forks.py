"""Processes that the user's code forks from a recorded training: they see closed callbacks, and end."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import child_environment, entries
from tests.support.processes import warm_python

pytestmark = pytest.mark.slow

JOB = """
import os, sys, time
from composer.core import Callback
from composer_memprof import *
from tests.conftest import make_trainer, train

how = sys.argv[1]
soon = {'skip': '3ba', 'active': '2ba'}

def recording():
    return [
        *(make(schedule=soon) for make in (MemorySnapshot, SavedTensorsHook, FSDPMemTracker)),
        *(MemProfiler(), HostRSS(), StepTimes(), Flops()),
    ]

ours = recording()

class Forks(Callback):
    def after_forward(self, state, logger):
        # before, in and after the window of the profiler
        if how == 'none' or os.getpid() != parent or state.timestamp.batch not in (1, 4, 12):
            return
        child = os.fork()
        if child:
            ended = None
            until = time.monotonic() + 180  # the machine may be busy
            while ended is None and time.monotonic() < until:
                pid, status = os.waitpid(child, os.WNOHANG)
                ended = status if pid else time.sleep(0.05)
            print('a child ended with', ended, flush=True)
            if ended is None:
                os.kill(child, 9)
        elif how == 'exit':
            sys.exit(0)
        elif how == 'raise':
            raise ValueError('of the child')
        elif how == 'own':
            trainer.close()  # as Composer demands
            train(*ours, batches=6, run_name='own')
            sys.exit(0)

parent = os.getpid()
trainer = make_trainer(*ours, Forks(), batches=24)
trainer.fit()
trainer.close()
print('trained', os.getpid() == parent, flush=True)
"""


def files_of(how: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], Counter[str]]:
    (folder / 'job.py').write_text(JOB)
    done = warm_python.run(
        [sys.executable, 'job.py', how],
        cwd=folder,
        env=child_environment(),
        whole_exit=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    listed = entries(folder / 'test-run')
    assert {entry.status for entry in listed} == {'saved'}
    return done, Counter(entry.kind for entry in listed)


@pytest.fixture(scope='module')
def without(tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """The files of a run that forks nothing."""
    return files_of('none', tmp_path_factory.mktemp('without'))[1]


@pytest.mark.parametrize(('how', 'status'), [('exit', 0), ('raise', 1 << 8), ('goes on', 0), ('own', 0)])
def test_a_fork_of_the_users_code_writes_nothing_closes_nothing_and_ends(
    how: str, status: int, without: Counter[str]
) -> None:
    done, files = files_of(how, Path.cwd())
    assert done.stdout.count(f'a child ended with {status}\n') == 3, done.stdout + done.stderr[-3000:]
    assert done.stdout.count('trained True') == 1 and done.stdout.count('trained False') == (
        3 if how == 'goes on' else 0
    )
    assert files == without
    (times,) = Path('test-run').rglob('*step_times.jsonl')
    assert len(times.read_text().splitlines()) == 24
    assert done.stderr.count('composer-memprof report test-run') == 1, 'the child says nothing of its parent'
    assert (Path('own').exists(), len(entries(Path('own'), 'memory_snapshot'))) == (
        (True, 3) if how == 'own' else (False, 0)
    )
