"""A session of torch's profiler that follows Python calls, beside threads and garbage collections."""

from __future__ import annotations

import pytest

from tests.support.stores import run_script

pytestmark = pytest.mark.slow

BESIDE_COLLECTIONS = """
import gc, sys, threading, time
import torch
from composer_memprof import garbage
from composer_memprof.recorders.kineto import KinetoRecorder

def deep(calls):
    return deep(calls - 1) if calls else [object() for _ in range(20)]

def work():
    while not stop.is_set():
        for calls in (5, 60, 150):
            deep(calls)

def see(phase, info):
    for _ in range(200):
        pass

stop, end = threading.Event(), time.monotonic() + 5
garbage.watch(see)
gc.set_threshold(5)
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads:
    thread.start()
while time.monotonic() < end:
    recorder = KinetoRecorder(with_stack=True, profile_memory=True)
    recorder.start()
    torch.ones(8)
    recorder.stop()
stop.set()
for thread in threads:
    thread.join()
garbage.unwatch(see)
print('recorded')
"""


def test_sessions_that_follow_calls_survive_collections_on_other_threads() -> None:
    run = run_script(BESIDE_COLLECTIONS)
    assert (run.returncode, run.stdout) == (0, 'recorded\n'), run.stderr[-2000:]
