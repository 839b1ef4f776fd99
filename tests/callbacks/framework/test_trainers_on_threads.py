"""Trainers that train at once, on threads of one process, or one within another."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import child_environment, entries
from tests.support.processes import warm_python

pytestmark = pytest.mark.slow

JOB = """
import sys, threading
from composer.core import Callback
from composer_memprof import *
from tests.conftest import make_trainer

how, watched = sys.argv[1:]
windows = {'skip': '1ba', 'active': '3ba', 'every': '6ba'}
names = ['first', 'second', 'third']
together = threading.Barrier(len(names) if how == 'threads' else 1)

class Losses(Callback):
    def __init__(self):
        self.seen = []

    def batch_start(self, state, logger):
        if how == 'threads' and state.timestamp.batch < 12:
            together.wait(60)

    def batch_end(self, state, logger):
        self.seen.append(float(state.loss))
        if how == 'nested' and self is losses['first'] and state.timestamp.batch == 3:
            for name in names[1:]:
                run(name)

def recording():
    makes = (MemorySnapshot, SavedTensorsHook, FSDPMemTracker, Flops, MemProfiler)
    return [*(make(schedule=windows) for make in makes), HostRSS(), StepTimes(), VizTracer(schedule={**windows, 'skip': '4ba', 'active': '1ba'})]

def run(name):
    trainers[name].fit()
    trainers[name].close()

losses = {name: Losses() for name in names}
trainers = {
    name: make_trainer(*(recording() if watched == 'watched' else []), losses[name], batches=24, run_name=name)
    for name in names
}
if how == 'threads':
    threads = [threading.Thread(target=run, args=[name]) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
else:
    run('first')
print(*(loss.hex() for name in names for loss in losses[name].seen), flush=True)
"""


def losses(how: str, watched: str) -> tuple[list[str], str]:
    words = [sys.executable, '-c', JOB, how, watched]
    done = warm_python.run(words, env=child_environment(), capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split(), done.stderr


@pytest.mark.parametrize('how', ['threads', 'nested'])
def test_trainers_that_train_at_once_do_so_as_without_callbacks(how: str) -> None:
    alone, _ = losses(how, 'bare')
    watched, said = losses(how, 'watched')
    assert watched == alone and len(alone) == 3 * 24
    assert 'is disabled' not in said, said
    for name in ('first', 'second', 'third'):
        found = entries(Path(name))
        assert {entry.status for entry in found} <= {'saved', 'removed', 'skipped'}, found
        assert {'host_rss', 'step_times', 'flops'} <= {entry.kind for entry in found}
    kinds = [entry.kind for name in ('first', 'second', 'third') for entry in entries(Path(name))]
    assert 'memory_snapshot' in kinds
