"""The memory of a child that writes: its limits, what is left out near them, and what is not copied."""

from __future__ import annotations

import mmap
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from composer_memprof import SavedTensorsHook
from composer_memprof.artifacts.writing.child import fork as child_module
from composer_memprof.artifacts.writing.child import memory as child_memory
from composer_memprof.artifacts.writing.child.fork import fork
from composer_memprof.artifacts.writing.child.memory import why_no_memory
from composer_memprof.cgroup import Cgroup
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.host_memory import host_memory
from tests.conftest import entries, train, wait_for
from tests.support.cgroups import memory_cgroup as memory_cgroup
from tests.support.stores import FOLDER, make_store, run_script, stamp, text

# -- memory -------------------------------------------------------------------------------------------------------------


def test_a_child_offers_itself_when_memory_runs_out_and_the_training_does_not() -> None:
    before = Path('/proc/self/oom_score_adj').read_text()
    child = fork(lambda: time.sleep(60))
    assert child is not None
    try:
        assert Path(f'/proc/{child.pid}/oom_score_adj').read_text() == '1000\n'
        assert Path('/proc/self/oom_score_adj').read_text() == before != '1000\n'
    finally:
        child.kill()


def small_cgroup(tmp_path: Path, usage: int, limit: int) -> Cgroup:
    root, membership = tmp_path / 'cgroup', tmp_path / 'membership'
    root.mkdir()
    membership.write_text('0::/\n')
    contents = {'cgroup.controllers': 'memory', 'memory.current': usage, 'memory.max': limit, 'memory.stat': ''}
    for name, content in contents.items():
        (root / name).write_text(f'{content}\n')
    return Cgroup(root, membership)


def test_no_handler_of_the_trainings_runs_in_a_child() -> None:
    def preempted(number: int, frame: object) -> None:
        raise RuntimeError

    def work() -> Iterator[str]:
        time.sleep(0.5)
        yield 'a window'

    before = signal.signal(signal.SIGUSR1, preempted)
    try:
        child = fork(work)
        assert child is not None
        os.kill(child.pid, signal.SIGUSR1)
        assert child.results() == ['a window']
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_child_writes_when_the_training_dies_though_others_hold_its_pipe(tmp_path: Path) -> None:
    def work() -> Iterator[str]:
        (tmp_path / 'written').touch()
        yield 'a window'

    training = os.fork()
    if not training:
        fork(work, in_turn=True)
        if not os.fork():  # a process of the user's
            time.sleep(20)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(training, 0)
    wait_for((tmp_path / 'written').exists, seconds=15)


def test_a_child_needs_a_fifth_of_the_trainings_memory_below_the_limit(tmp_path: Path) -> None:
    used = psutil.Process().memory_info()
    private = used.rss - used.shared
    limit = 100 * private
    (tmp_path / 'far').mkdir()
    assert why_no_memory(small_cgroup(tmp_path / 'far', limit - private, limit)) is None
    (tmp_path / 'near').mkdir()
    reason = why_no_memory(small_cgroup(tmp_path / 'near', limit - private // 10, limit))
    assert reason is not None and 'memory is short' in reason and 'left below the limit of' in reason


def test_near_the_limit_windows_are_left_out_listed_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_memory, '_cgroup', small_cgroup(tmp_path, 10**9, 10**9))
    with pytest.warns(
        MemprofWarning, match='saved_tensors_hook: 4 of 4 were left out, because memory is short'
    ) as told:
        train(SavedTensorsHook(schedule={'active': '1ba', 'every': '3ba'}))
    assert sum('left out' in str(warning.message) for warning in told) == 1
    listed = entries(Path('test-run'))
    assert [entry.status for entry in listed] == ['skipped'] * 4
    assert all('memory is short' in (entry.reason or '') for entry in listed)
    assert listed[0].path == 'rank0.0.saved_tensors.skipped.json'


def test_a_window_that_was_recorded_is_left_out_if_memory_is_short_when_its_turn_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store()
    monkeypatch.setattr(child_memory, '_cgroup', small_cgroup(tmp_path, 10**9, 10**9))
    with pytest.warns(MemprofWarning, match='thing: 1 of 1 were left out, because memory is short'):
        store.save([text(), text(kind='thing.page', suffix='.html')], stamp())
        store.close(20)
    assert [(entry.kind, entry.status) for entry in entries(FOLDER)] == [('thing', 'skipped')]


TRAINING = """
    import os, sys, time
    from pathlib import Path
    limit = Path(sys.argv[1])
    (limit.parent / 'cgroup.procs').write_text(str(os.getpid()))
    import numpy as np
    from composer_memprof.artifacts.writing.child import memory as child_memory
    from composer_memprof.cgroup import Cgroup
    from tests.support.stores import make_store, stamp, Part, FOLDER
    from tests.conftest import entries
    child_memory._REWRITTEN_SHARE = float(sys.argv[2])
    os.register_at_fork(after_in_child=lambda: time.sleep(0.5))  # as on a busy machine
    weights = np.ones(40_000_000)
    limit.write_text(str(int(1.2 * Cgroup().read().usage)))

    def write(path):
        more = np.ones(20_000_000)
        time.sleep(1)
        path.write_text('x')

    store = make_store()
    store.save([Part('thing', '.txt', write)], stamp())
    begin = time.monotonic()
    while time.monotonic() - begin < 2:
        weights += 1
    store.close(20)
    print('trained', entries(FOLDER)[0].status)
"""


@pytest.mark.slow
@pytest.mark.parametrize(('share_of_fork', 'status'), [('0', 'failed'), ('0.5', 'skipped')])
def test_under_a_memory_limit_the_training_survives(memory_cgroup: Path, share_of_fork: str, status: str) -> None:
    """First without the look at the memory that is left, so that it runs out."""
    # The cgroup counts what a process has allocated itself, not what it shares with the one that it was forked from.
    run = run_script(TRAINING, str(memory_cgroup), share_of_fork, run=subprocess.run)
    assert run.returncode == 0, run.stderr
    assert run.stdout == f'trained {status}\n'


def test_a_killed_child_frees_its_memory_as_fast_as_the_training_runs() -> None:
    """The kernel kills another process if that takes two seconds, which it does at idle priority on a busy machine."""
    killed, working = (fork(lambda: time.sleep(60)) for _ in range(2))
    assert killed is not None and working is not None
    try:
        for child in (killed, working):
            wait_for(lambda pid=child.pid: os.sched_getscheduler(pid) == os.SCHED_IDLE, 20)  # type: ignore[misc]
        os.kill(killed.pid, signal.SIGKILL)
        child_module.hurry(child_module._is_killed)
        assert os.sched_getscheduler(killed.pid) == os.SCHED_OTHER
        assert os.sched_getscheduler(working.pid) == os.SCHED_IDLE
    finally:
        killed.kill()
        working.kill()


def faults_of(work: Callable[[], object]) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_the_weights_are_not_copied_while_a_child_lives_and_the_users_own_forks_have_them() -> None:
    model = torch.nn.Linear(4096, 4096)
    child_memory.exclude_from_children(model, lambda model: host_memory(model, []))
    pages = model.weight.nbytes // mmap.PAGESIZE

    def update() -> None:
        with torch.no_grad():
            model.weight += 1

    update()
    child = fork(lambda: time.sleep(60))
    assert child is not None
    assert faults_of(update) < pages / 10
    child.kill()
    own = os.fork()
    if not own:
        time.sleep(60)
    assert faults_of(update) > pages / 2, 'a fork of the user has not got the weights'
    os.kill(own, signal.SIGKILL)
    os.waitpid(own, 0)


ON_TWO_THREADS = """
import sys, threading, time, torch
from composer_memprof.artifacts.writing.child.memory import exclude_from_children, memory_excluded
from composer_memprof.recorders.host_memory import host_memory

model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(20)))
inputs, registered, end = torch.ones(2, 8), threading.Event(), time.monotonic() + 2

def train():
    exclude_from_children(model, lambda model: host_memory(model, []))
    registered.set()
    while time.monotonic() < end:
        model.zero_grad()
        model(inputs).sum().backward()

training = threading.Thread(target=train)
training.start()
registered.wait()
while time.monotonic() < end:
    with memory_excluded():
        pass
training.join()
print('trained')
"""


def test_a_fork_on_one_thread_does_not_look_at_the_gradients_that_another_thread_replaces() -> None:
    run = run_script(ON_TWO_THREADS)
    assert (run.returncode, run.stdout) == (0, 'trained\n'), run.stderr
