"""Writing in a forked child: what it does to the training, what it keeps, and what happens where there is no room."""

from __future__ import annotations

import importlib.abc
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import psutil
import pytest
import torch

import composer_memprof
from composer_memprof import FSDPMemTracker, HostRSS, MemorySnapshot, MemProfiler, SavedTensorsHook
from composer_memprof.artifacts.naming.names import Naming
from composer_memprof.artifacts.reading.manifest import Entry
from composer_memprof.artifacts.store import ArtifactStore, Part
from composer_memprof.artifacts.writing import writer as writing
from composer_memprof.artifacts.writing.child import fork as child_module
from composer_memprof.artifacts.writing.child import headroom
from composer_memprof.artifacts.writing.child import memory as unshared
from composer_memprof.artifacts.writing.child.fork import fork
from composer_memprof.artifacts.writing.child.headroom import NO_MEMORY, why_no_memory
from composer_memprof.artifacts.writing.disk import sync_and_digest
from composer_memprof.artifacts.writing.skipped_windows import LeftOut
from composer_memprof.callbacks.registry import CALLBACKS
from composer_memprof.cgroup import Cgroup
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.host_memory import host_memory
from tests.artifacts.test_artifacts import FOLDER, make_store, stamp, text
from tests.conftest import FEATURES, Regression, child_environment, entries, make_trainer, train, wait_for
from tests.support import warm_python

DENSE = {'active': '1ba', 'every': '2ba'}


def statuses(folder: Path, kind: str = '') -> Counter[str]:
    return Counter(entry.status for entry in entries(folder, kind))


def slow_part(seconds: float) -> Part:
    def write(path: Path) -> None:
        time.sleep(seconds)
        path.write_text('x')

    return Part('thing', '.txt', write)


def part_that_waits() -> Part:
    """It is written once there is a file ``may-end``."""
    gate = Path('may-end').absolute()

    def write(path: Path) -> None:
        wait_for(gate.exists, 60)
        path.write_text('x')

    return Part('thing', '.txt', write)


def run_script(
    script: str, *arguments: str, run: Any = warm_python.run, **settings: Any
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, '-c', textwrap.dedent(script), *arguments]
    return run(command, capture_output=True, text=True, timeout=120, env=child_environment(), **settings)


# -- memory -------------------------------------------------------------------------------------------------------------


def test_a_child_offers_itself_when_memory_runs_out_and_the_training_does_not() -> None:
    before = Path('/proc/self/oom_score_adj').read_text()
    child = fork(lambda: [Path('/proc/self/oom_score_adj').read_text().strip()])
    assert child is not None and child.results(20) == ['1000']
    assert Path('/proc/self/oom_score_adj').read_text() == before != '1000\n'


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
    monkeypatch.setattr(headroom, '_cgroup', small_cgroup(tmp_path, 10**9, 10**9))
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
    monkeypatch.setattr(headroom, '_cgroup', small_cgroup(tmp_path, 10**9, 10**9))
    with pytest.warns(MemprofWarning, match='thing: 1 of 1 were left out, because memory is short'):
        store.save([text(), text(kind='thing.page', suffix='.html')], stamp())
        store.close(20)
    assert [(entry.kind, entry.status) for entry in entries(FOLDER)] == [('thing', 'skipped')]


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A memory cgroup of our own, where that is permitted."""
    for root, name in (('/sys/fs/cgroup/memory', 'memory.limit_in_bytes'), ('/sys/fs/cgroup', 'memory.max')):
        folder = Path(root, f'memprof-{uuid.uuid4().hex}')
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / name).exists():
            yield folder / name
            folder.rmdir()
            return
        folder.rmdir()
    pytest.skip('no memory cgroup can be made here')


TRAINING = """
    import os, sys, time
    from pathlib import Path
    limit = Path(sys.argv[1])
    (limit.parent / 'cgroup.procs').write_text(str(os.getpid()))
    import numpy as np
    from composer_memprof.artifacts.writing.child import headroom
    from composer_memprof.cgroup import Cgroup
    from tests.artifacts.test_artifacts import make_store, stamp, Part, FOLDER
    from tests.conftest import entries
    headroom._REWRITTEN_SHARE = float(sys.argv[2])
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
    unshared.leave_out(model, lambda model: host_memory(model, []))
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


# -- what a child holds -------------------------------------------------------------------------------------------------


def test_a_killed_trainings_port_and_output_are_free_while_its_child_writes() -> None:
    script = """
        import os, signal, socket, time
        from pathlib import Path
        from tests.artifacts.test_artifacts import make_store, stamp
        from tests.artifacts.test_writer import slow_part
        server = socket.create_server(('127.0.0.1', 0))
        store = make_store()
        store.save([slow_part(5)], stamp())
        Path('port').write_text(str(server.getsockname()[1]))
        print('training', flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    begin = time.monotonic()
    run = run_script(script)  # returns when nobody has its output open
    assert run.returncode == -signal.SIGKILL and run.stdout == 'training\n'
    with socket.socket() as again:
        again.bind(('127.0.0.1', int(Path('port').read_text())))
    assert time.monotonic() - begin < 60 and not (FOLDER / 'rank0.4.txt').exists(), 'the child still writes'
    wait_for(lambda: statuses(FOLDER)['saved'] == 1, 60)


#: Leaves ``free`` files to open.
NO_FILES = """
    import os, resource, sys, threading, time, warnings
    from pathlib import Path
    from composer_memprof.artifacts.writing.child.fork import fork
    from tests.artifacts.test_artifacts import FOLDER, Part, make_store, stamp, text
    taken = []

    def leave(free, hard=resource.getrlimit(resource.RLIMIT_NOFILE)[1]):
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            for descriptor in taken[-free:] if free else ():
                os.close(taken.pop())

    def free_in(seconds):
        timer = threading.Timer(seconds, lambda: list(map(os.close, taken)))
        timer.daemon = True
        timer.start()

    def save_and_print(store, part, **how):
        with warnings.catch_warnings(record=True) as said:
            began = time.monotonic()
            store.save([part], stamp(2), **how)
            print(f'{time.monotonic() - began:.0f}')
            store.flush(20)
            store.close(20)
        for warning in said:
            print(warning.message)
"""


def test_a_child_needs_no_more_files_than_its_pipes(tmp_path: Path) -> None:
    script = """
    os.dup2(0, 200)
    leave(4, hard=100)
    child = fork(lambda: [Path('written').write_text('x')], in_turn=True)
    print(child.results(), child.failure)
    """
    assert run_script(NO_FILES + script, cwd=tmp_path).stdout == '[1] \n'


def test_a_child_opens_as_many_files_as_the_machine_lets_it(tmp_path: Path) -> None:
    script = """
    leave(4)
    child = fork(lambda: [len([open(os.devnull) for _ in range(20)])], in_turn=True)
    print(child.results(), child.failure)
    """
    assert run_script(NO_FILES + script, cwd=tmp_path).stdout == '[20] \n'


@pytest.mark.parametrize('is_first', [True, False])
def test_where_no_file_is_left_to_open_a_window_is_written_once_one_is_free(is_first: bool) -> None:
    script = """
    store = make_store()
    if sys.argv[1] == 'False':
        store.save([text()], stamp(1))
        store.flush(20)
    leave(0)
    free_in(0.5)
    save_and_print(store, text())
    """
    run = run_script(NO_FILES + script, str(is_first))
    saved = [2] if is_first else [1, 2]
    assert [(entry.batch, entry.status) for entry in entries(FOLDER)] == [(batch, 'saved') for batch in saved], (
        run.stderr
    )
    assert run.stdout == '0\n'


def test_what_was_written_is_not_written_again_because_no_file_was_left_after_it() -> None:
    script = """
    written = []
    def write(path):
        time.sleep(2.1)
        path.write_text('x')
        written.append(path)
        leave(0)
        free_in(0.3)
    store = make_store()
    store.save([text()], stamp(1))
    store.flush(20)
    leave(1)
    save_and_print(store, Part('thing', '.txt', write))
    print(len(written), *sorted(os.listdir(FOLDER)))
    """
    run = run_script(NO_FILES + script)
    warning = "composer_memprof: waiting for the last files to be written to '"
    lines = [line for line in run.stdout.splitlines() if not line.startswith(warning)]
    assert lines == ['0', '1 rank0.1.txt rank0.2.txt rank0.manifest.jsonl'], run.stderr
    assert statuses(FOLDER) == {'saved': 2}


@pytest.mark.parametrize('inline', [True, False])
def test_a_window_for_which_no_file_gets_free_is_listed_as_failed_and_the_training_waits_for_none(inline: bool) -> None:
    script = """
    store = make_store()
    store.save([text()], stamp(1))
    store.flush(20)
    leave(0)
    save_and_print(store, text(), inline=sys.argv[1] == 'True')
    """
    run = run_script(NO_FILES + script, str(inline))
    listed = [(entry.batch, entry.status) for entry in entries(FOLDER, 'thing')]
    assert listed == [(1, 'saved'), (2, 'failed')], run.stderr
    error = "OSError: [Errno 24] Too many open files: '"
    held, said = run.stdout.splitlines()
    assert held == '0' and said.startswith(f'composer_memprof: thing of batch 2 could not be written: {error}')
    assert said.endswith("'. Raise the limit of open files: ulimit -n")


def test_a_child_keeps_the_manifests_lock_so_that_push_knows_of_it() -> None:
    store = make_store()
    with open('lock of the training', 'w'):
        store.save([Part('thing', '.txt', lambda path: path.write_text('\n'.join(open_files())))], stamp())
        store.close(20)
    held = [Path(name) for name in (FOLDER / 'rank0.4.txt').read_text().splitlines()]
    assert [path.name for path in held if Path.cwd() in path.parents and path.suffix != '.tmp'] == [
        'rank0.manifest.jsonl'
    ]


def open_files() -> list[str]:
    links = [os.path.join('/proc/self/fd', name) for name in os.listdir('/proc/self/fd')]
    return sorted({os.readlink(link) for link in links if os.path.exists(link)} - {os.devnull})


# -- parts --------------------------------------------------------------------------------------------------------------


def test_a_name_that_leaves_the_folder_loses_only_its_own_part(tmp_path: Path) -> None:
    FOLDER.mkdir()
    (FOLDER / 'out').symlink_to(tmp_path)
    store = make_store()
    parts = [
        text(),
        replace(text(kind='thing.link'), naming=Naming('out/x', None, '.txt')),
        replace(text(kind='thing.up'), naming=Naming('../x', None, '.txt')),
        replace(text(kind='thing.long'), naming=Naming('x' * 300, None, '.txt')),
        text(kind='thing.page', suffix='.html'),
    ]
    with pytest.warns(MemprofWarning, match='could not be written') as told:
        store.save(parts, stamp())
        store.close(20)
    saved = [entry.kind for entry in entries(FOLDER) if entry.status == 'saved']
    assert saved == ['thing', 'thing.page']
    assert sum('could not be written' in str(warning.message) for warning in told) == 3
    assert not list(FOLDER.glob('.*'))


class _Watch(importlib.abc.MetaPathFinder):
    """Notes what a forked child imports."""

    def __init__(self, log: Path) -> None:
        self._log, self._parent = log, os.getpid()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if os.getpid() != self._parent:
            with open(self._log, 'a') as log:
                log.write(f'{name}\n')


class _Large(Regression):
    """With weights that are large enough to be left out of a child."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(FEATURES, 1 << 16), torch.nn.ReLU(), torch.nn.Linear(1 << 16, 1))


@pytest.mark.parametrize('name', CALLBACKS)
def test_no_child_imports_anything_or_needs_the_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock of an import that another thread was in at the fork is never released in the child."""
    for package in ('memray', 'viztracer'):
        if name.endswith(package):
            pytest.importorskip(package)
    callback = CALLBACKS[name](schedule={'skip': '1ba', 'active': '1ba'}, compress=True)
    trainer = make_trainer(callback, batches=3, model=_Large())
    log = tmp_path / 'imports'
    monkeypatch.setattr(sys, 'meta_path', [_Watch(log), *sys.meta_path])
    trainer.fit()
    trainer.close()
    assert not log.exists() or log.read_text() == ''
    assert set(statuses(Path('test-run'))) <= {'saved', 'removed'}
    assert statuses(Path('test-run'))['saved']


def test_a_full_disk_leaves_no_half_of_a_line_in_a_growing_file() -> None:
    store = make_store()
    growing = store.grow('thing', '.txt', stamp(0))
    assert store.flush(20)  # its line in the manifest
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    lines: list[str] = []
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        with pytest.raises(OSError, match='No space left'):
            while True:
                line = 'x' * 99 + str(len(lines))
                growing.write(line)
                lines.append(line)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (FOLDER / 'rank0.0.txt').read_text().splitlines() == lines
    store.close(20)


# -- patience -----------------------------------------------------------------------------------------------------------


def test_a_slow_child_lives_a_stuck_one_does_not_and_what_it_has_done_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, 'STUCK_S', 1.5)
    monkeypatch.setattr(child_module, '_LOOK_EVERY_S', 0.1)

    def compute(path: Path) -> None:
        end = time.monotonic() + 4
        while time.monotonic() < end:
            sum(range(10_000))
        path.write_text('x')

    def hang(path: Path) -> None:
        time.sleep(60)

    store = make_store()
    with pytest.warns(MemprofWarning, match='the process that wrote it died: it was stuck for 1.5 s'):
        store.save([Part('thing', '.txt', compute), Part('thing.page', '.html', hang)], stamp())
        store.close(20)
    assert [(entry.kind, entry.status) for entry in entries(FOLDER)] == [('thing', 'saved'), ('thing.page', 'failed')]
    assert not list(FOLDER.glob('.*'))


def test_a_child_gives_way_to_everything_else() -> None:
    child = fork(lambda: [os.sched_getscheduler(0), os.nice(0)])
    assert child is not None and child.results(20) == [os.SCHED_IDLE, 19]


@pytest.mark.skipif(os.geteuid() != 0, reason='only root may raise a priority')
def test_a_child_that_somebody_waits_for_runs_as_everything_else_does() -> None:
    def write(path: Path) -> None:
        while os.sched_getscheduler(0) == os.SCHED_IDLE:
            time.sleep(0.05)
        path.write_text('x')

    store = make_store()
    store.save([Part('thing', '.txt', write)], stamp())
    assert store.flush(60)
    store.close(20)


# -- handing over -------------------------------------------------------------------------------------------------------


def test_after_fit_everything_is_written_without_a_close() -> None:
    trainer = make_trainer(SavedTensorsHook(schedule=DENSE, on_full='wait'), FSDPMemTracker(), MemorySnapshot())
    trainer.fit()
    wait_for(lambda: statuses(Path('test-run'))['saved'] >= 6 * 2 + 3 + 3, 60)
    trainer.close()
    assert set(statuses(Path('test-run'))) == {'saved'}


def test_a_process_that_ends_at_once_after_fit_leaves_its_windows_to_their_children() -> None:
    script = """
        import os
        from composer_memprof import SavedTensorsHook
        from tests.conftest import make_trainer
        trainer = make_trainer(SavedTensorsHook(schedule={'active': '1ba', 'every': '4ba'}))
        trainer.fit()
        os._exit(0)
    """
    assert run_script(script).returncode == 0
    wait_for(lambda: statuses(Path('test-run')) == {'saved': 6}, 60)


def test_flush_waits_until_the_windows_so_far_are_written() -> None:
    callback = SavedTensorsHook(schedule={'active': '1ba', 'every': '4ba'})
    assert callback.flush()  # there is nothing yet
    trainer = make_trainer(callback)
    trainer.fit()
    assert callback.flush(60)
    assert statuses(Path('test-run')) == {'saved': 6}
    trainer.close()
    assert callback.flush()


def test_flush_says_if_it_did_not_suffice() -> None:
    store = make_store()
    store.save([slow_part(2)], stamp())
    assert not store.flush(0.1)
    assert store.flush(60)
    store.close(20)


def test_later_fits_of_a_process_record_too() -> None:
    """Nobody closes the Trainers before; their windows waited for a training thread that never came."""
    trainers = []
    for name in ('first', 'second', 'third'):
        trainer = make_trainer(SavedTensorsHook(schedule=DENSE), run_name=name, batches=20)
        trainer.fit()
        trainers.append(trainer)
    for name in ('first', 'second', 'third'):
        wait_for(lambda name=name: statuses(Path(name))['saved'] > 0, 60)  # type: ignore[misc]
    for trainer in trainers:
        trainer.close()


def test_two_trainings_in_two_threads_write_each_window_once_and_leave_no_zombie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    children = set(psutil.Process().children())
    stores = [make_store(), make_store()]

    def use(number: int) -> None:
        for batch in range(number, 20, 2):
            stores[number].save([text()], stamp(batch))

    threads = [threading.Thread(target=use, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close(60)
    assert [(entry.path, entry.status) for entry in sorted(entries(FOLDER), key=lambda entry: entry.batch)] == [
        (f'rank0.{batch}.txt', 'saved') for batch in range(20)
    ]
    assert set(psutil.Process().children()) <= children


def test_a_fork_is_quiet_for_the_tokenizers_library_and_the_users_own_is_as_it_was() -> None:
    """Its handler of forks reads this variable."""
    script = """
        import os, sys
        from composer_memprof.artifacts.writing.child.fork import fork
        seen = []
        os.register_at_fork(after_in_child=lambda: seen.append(os.environ.get('TOKENIZERS_PARALLELISM')))
        sys.modules['tokenizers'] = sys
        print(fork(lambda: seen).results(20), flush=True)
        if not os.fork():
            print(seen, flush=True)
            os._exit(0)
        os.wait()
    """
    assert run_script(script).stdout.splitlines() == ["['false']", '[None]']


# -- room ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('callback', [SavedTensorsHook, FSDPMemTracker, MemorySnapshot])
def test_dense_windows_are_written_or_listed_as_skipped_and_counted(
    callback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_sync(path: Path) -> tuple[int, str]:
        time.sleep(0.2)
        return sync_and_digest(path)

    monkeypatch.setattr(writing, 'sync_and_digest', slow_sync)  # a fast disk keeps up with these windows
    kind, files = callback.kind, {SavedTensorsHook: 2, FSDPMemTracker: 3, MemorySnapshot: 3}[callback]
    with pytest.warns(MemprofWarning, match=rf'{kind}: \d+ of 30 were left out, because earlier windows') as told:
        train(callback(schedule=DENSE), batches=60)
    assert sum('left out' in str(warning.message) for warning in told) == 1
    found = statuses(Path('test-run'))
    assert found['skipped'] and found['saved'] and found['skipped'] + found['saved'] // files == 30


@pytest.mark.parametrize('callback', [SavedTensorsHook, MemorySnapshot])
def test_on_full_wait_leaves_no_window_out(callback: Any) -> None:
    train(callback(schedule=DENSE, on_full='wait'), batches=16)
    assert statuses(Path('test-run'), callback.kind) == {'saved': 8}


def test_an_open_file_of_its_own_takes_no_room() -> None:
    store = make_store()
    others = [make_store() for _ in range(2)]
    for other in others:
        for _ in range(2):
            other.save([slow_part(0.3)], stamp())
    growing = [store.grow('thing.open', '.log', stamp(batch)) for batch in range(3)]
    assert store.why_no_room() is None, 'its own open files count as windows that wait'
    for file in growing:
        file.close()
    for each in (store, *others):
        each.close(20)


def test_mem_profiler_writes_the_only_log_of_one_batch_beside_busy_callbacks() -> None:
    train(
        SavedTensorsHook(schedule={'active': '1ba', 'every': '1ba'}),
        MemProfiler(track_fsdp_mem=True, collect_funcs=['training_step'], schedule={'skip': '3ba', 'active': '1ba'}),
        HostRSS(),
    )
    listed: list[Entry] = [entry for entry in entries(Path('test-run')) if entry.kind.startswith('mem_profiler')]
    assert {entry.kind for entry in listed if entry.status == 'saved'} >= {
        'mem_profiler.fsdp',
        'mem_profiler.fsdp.json',
    }


@pytest.mark.parametrize('on_full', ['never', None, 3])
def test_on_full_is_checked(on_full: Optional[str]) -> None:
    with pytest.raises(ValueError, match=f'HostRSS: on_full={on_full!r} is unknown; allowed are skip, wait'):
        composer_memprof.HostRSS(on_full=on_full)


def test_a_window_of_a_store_is_counted_by_what_it_took() -> None:
    store = ArtifactStore(FOLDER, Naming('rank{rank}.{batch}', None, '.txt'))
    store.save([text()], stamp(1))
    store.leave_out(text(), stamp(2), 'VizTracer is recording')
    with pytest.warns(
        MemprofWarning, match='thing: 1 of 2 were left out, because VizTracer is recording. The manifest'
    ):
        store.close(20)
    assert {(entry.status, entry.reason) for entry in entries(FOLDER)} == {
        ('saved', None),
        ('skipped', 'VizTracer is recording'),
    }


def test_what_is_left_out_and_files_that_are_closed_do_not_pile_up_behind_a_slow_window() -> None:
    store, lines = make_store(), make_store()
    store.save([part_that_waits()], stamp())
    for batch in range(20):
        lines.grow('line', '.jsonl', stamp(batch)).close()
        store.leave_out(text(), stamp(100 + batch), 'earlier windows were still being written')
    wait_for(lambda: (statuses(FOLDER, 'line'), statuses(FOLDER, 'thing')) == ({'saved': 20}, {'skipped': 20}), 30)
    Path('may-end').touch()
    with pytest.warns(MemprofWarning, match='thing: 20 of 21 were left out'):
        store.close(60)
    lines.close(60)
    assert statuses(FOLDER, 'thing') == {'skipped': 20, 'saved': 1}


def test_a_count_of_what_was_left_out_is_right_though_it_was_taken_before_the_last_warning() -> None:
    left_out = LeftOut()
    left_out.count_taken('thing')
    left_out.warn()
    left_out.add('thing', NO_MEMORY, was_taken=True)
    with pytest.warns(MemprofWarning, match='thing: 1 of 1 were left out'):
        left_out.warn()


# -- which windows are kept ---------------------------------------------------------------------------------------------


def test_the_newest_window_is_kept_though_an_older_one_takes_longer_to_write() -> None:
    store = make_store(keep=1)
    store.save([slow_part(1)], stamp(1))
    store.grow('line', '.jsonl', stamp(2)).close()
    store.close(20)
    assert {entry.batch: entry.status for entry in entries(FOLDER)} == {1: 'removed', 2: 'saved'}


def test_a_growing_file_that_replaces_an_older_windows_is_not_removed_with_it() -> None:
    store = ArtifactStore(FOLDER, Naming('fixed', None, '.txt'), keep=1, overwrite=True)
    store.grow('line', '.jsonl', stamp(1)).close()
    store.flush(20)
    growing = store.grow('line', '.jsonl', stamp(2))
    store.save([text()], stamp(1))
    store.flush(20)
    assert growing.path.exists()
    growing.close()
    store.close(20)
    assert Counter(entry.status for entry in entries(FOLDER, 'line')) == {'saved': 1}


# -- a store that is collected on a worker thread -----------------------------------------------------------------------


def test_a_store_that_is_collected_on_the_writers_own_thread_closes_without_waiting_for_it() -> None:
    store, other = make_store(), make_store()
    closed = threading.Event()

    def collect(paths: Any) -> None:
        store.save([text(kind='late')], stamp())
        store.close(20)
        closed.set()

    other.save([text()], stamp(), on_saved=collect)
    other.close(20)
    assert closed.wait(20)
    assert {entry.kind: entry.status for entry in entries(FOLDER)} == {'thing': 'saved', 'late': 'saved'}


def test_one_that_is_collected_among_small_work_waits_for_no_window() -> None:
    store, other = make_store(), make_store()
    other.save([part_that_waits()], stamp())
    store.save([text(kind='late')], stamp())
    other._writer.run(lambda: store.close(20))
    other.leave_out(text(kind='skip'), stamp(9), 'VizTracer is recording')
    wait_for(lambda: statuses(FOLDER, 'skip') == {'skipped': 1}, 30)
    Path('may-end').touch()
    other.close(20)
    wait_for(lambda: statuses(FOLDER, 'late') == {'saved': 1}, 20)
