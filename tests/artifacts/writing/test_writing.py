"""Files are written whole, listed, and never at the cost of the training."""

from __future__ import annotations

import gzip
import hashlib
import os
import resource
import shutil
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import psutil
import pytest

from composer_memprof.artifacts.naming.names import Naming
from composer_memprof.artifacts.store import Part
from composer_memprof.artifacts.writing import writer as writing
from composer_memprof.artifacts.writing.child.fork import ReadAtFork, fork
from composer_memprof.artifacts.writing.folder import ArtifactFolder
from composer_memprof.artifacts.writing.parts import write_parts
from composer_memprof.messages import MemprofWarning
from composer_memprof.signals import uninterrupted
from tests.conftest import child_environment, entries
from tests.support.processes import warm_python
from tests.support.stores import FOLDER, MemoryDestination, make_store, stamp, text

# -- writing ------------------------------------------------------------------------------------------------------


def test_a_file_is_complete_and_listed_with_its_size_and_sha256() -> None:
    store = make_store()
    store.save([text('abc'), text('more', 'thing.part', '.more.txt')], stamp())
    store.close(20)
    listed = entries(FOLDER)
    assert [(entry.kind, entry.path, entry.status) for entry in listed] == [
        ('thing', 'rank0.4.txt', 'saved'),
        ('thing.part', 'rank0.4.more.txt', 'saved'),
    ]
    content = (FOLDER / 'rank0.4.txt').read_bytes()
    assert (listed[0].bytes, listed[0].sha256) == (3, hashlib.sha256(content).hexdigest())
    assert (listed[0].epoch, listed[0].batch, listed[0].rank, listed[0].run_name) == (1, 4, 0, 'my-run')
    assert sorted(os.listdir(FOLDER)) == ['rank0.4.more.txt', 'rank0.4.txt', 'rank0.manifest.jsonl']


def test_existing_files_are_never_overwritten_and_nothing_is_skipped() -> None:
    store = make_store()
    for content in ('one', 'two', 'three'):
        store.save([text(content)], stamp())
    store.close(20)
    assert [(FOLDER / name).read_text() for name in ('rank0.4.txt', 'rank0.4.2.txt', 'rank0.4.3.txt')] == [
        'one',
        'two',
        'three',
    ]


def test_overwrite_replaces() -> None:
    store = make_store(overwrite=True)
    for content in ('one', 'two'):
        store.save([text(content)], stamp())
    store.close(20)
    assert (FOLDER / 'rank0.4.txt').read_text() == 'two'
    assert len(entries(FOLDER)) == 1


def test_compressed_files_have_the_suffix_of_the_codec() -> None:
    store = make_store()
    store.save([text('abc', compress=True)], stamp())
    store.close(20)
    assert gzip.decompress((FOLDER / 'rank0.4.txt.gz').read_bytes()) == b'abc'


def test_a_part_that_fails_does_not_stop_the_others() -> None:
    def fail(path: Path) -> None:
        path.write_text('half')
        raise RuntimeError('no such thing')

    store = make_store()
    with pytest.warns(MemprofWarning, match='thing.bad of batch 4 could not be written: RuntimeError: no such thing'):
        store.save([text(), Part('thing.bad', '.bad', fail)], stamp())
        store.close(20)
    assert [(entry.kind, entry.status) for entry in entries(FOLDER)] == [('thing', 'saved'), ('thing.bad', 'failed')]
    assert not list(FOLDER.glob('.*'))


def test_files_are_written_in_a_forked_child() -> None:
    store = make_store()
    store.save([Part('thing', '.txt', lambda path: path.write_text(str(os.getpid())))], stamp())
    store.close(20)
    assert int((FOLDER / 'rank0.4.txt').read_text()) != os.getpid()


def test_work_that_killed_a_child_is_not_tried_again_in_the_training() -> None:
    parent = os.getpid()

    def write(path: Path) -> None:
        assert os.getpid() != parent, 'the training would have died of it'
        os._exit(9)

    store = make_store()
    with pytest.warns(MemprofWarning, match='the process that wrote it died'):
        store.save([Part('thing', '.txt', write)], stamp())
        store.close(20)
    assert [entry.status for entry in entries(FOLDER)] == ['failed']


def test_without_a_child_files_are_written_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, 'fork', lambda *arguments, **settings: None)
    store = make_store()
    store.save([Part('thing', '.txt', lambda path: path.write_text(str(os.getpid())))], stamp())
    store.close(20)
    assert int((FOLDER / 'rank0.4.txt').read_text()) == os.getpid()


def test_a_child_that_is_terminated_as_it_starts_runs_none_of_its_parents_handlers() -> None:
    code = (
        'import atexit, os, signal, sys, time\n'
        'from composer_memprof.artifacts.writing.child import fork as child\n'
        'signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n'
        "atexit.register(lambda: print('exit handlers of', os.getpid(), flush=True))\n"
        'fork = os.fork\n'
        'def fork_and_stop():\n'
        '    pid = fork()\n'
        '    if not pid: os.kill(os.getpid(), signal.SIGTERM)\n'
        '    return pid\n'
        'os.fork = fork_and_stop\n'
        "print(os.getpid(), child.fork(lambda: ['whole']).results(20)[0], flush=True)\n"
    )
    run = warm_python.run(
        [sys.executable, '-c', code], capture_output=True, text=True, env=child_environment(), timeout=60
    )
    pid, result = run.stdout.splitlines()[0].split()
    assert result == 'whole'
    assert run.stdout.splitlines()[1:] == [f'exit handlers of {pid}']


def test_one_window_is_written_at_a_time_and_none_delays_the_training() -> None:
    store = make_store()
    alive = Path('alive')

    def slow(path: Path) -> None:
        with open(alive, 'x'):  # two at once would find it there
            time.sleep(0.3)
        alive.unlink()
        path.write_text('x')

    begin = time.monotonic()
    batch = 0
    while store.why_no_room() is None:
        store.save([Part('thing', '.txt', slow)], stamp(batch))
        batch += 1
    assert batch == 4
    assert time.monotonic() - begin < 0.3
    store.close(20)
    assert [entry.status for entry in entries(FOLDER)] == ['saved'] * 4


def test_a_child_names_and_lists_a_file_without_its_parent() -> None:
    folder = ArtifactFolder(FOLDER.absolute(), Naming('rank{rank}.{batch}', None, '.txt'), None, overwrite=False)
    child = fork(lambda: (str(written) for written in write_parts(folder, [text()], stamp())))
    assert child is not None
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert [(entry.path, entry.status) for entry in entries(FOLDER)] == [('rank0.4.txt', 'saved')]
    assert len(child.results(5)) == 1
    folder.manifest.release()


def test_an_error_of_on_saved_is_one_warning_and_the_file_stays() -> None:
    def fail(paths: dict[str, Path]) -> None:
        raise RuntimeError('no such reader')

    store = make_store()
    with pytest.warns(MemprofWarning, match='rank0.4.txt could not be processed after saving: RuntimeError: no such'):
        store.save([text()], stamp(), on_saved=fail)
        store.close(20)
    assert [entry.status for entry in entries(FOLDER)] == ['saved']


def test_warnings_that_are_made_errors_neither_raise_nor_hang() -> None:
    def fail(path: Path) -> None:
        raise RuntimeError('no such thing')

    store = make_store()
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        store.save([Part('thing', '.txt', fail)], stamp())
        store.close(20)
    assert [entry.status for entry in entries(FOLDER)] == ['failed']


def test_retention_never_removes_a_file_that_has_overwritten_an_older_one() -> None:
    store = make_store(overwrite=True, keep=1)
    for content in ('one', 'two', 'three'):
        store.save([text(content)], stamp())
    store.close(20)
    assert (FOLDER / 'rank0.4.txt').read_text() == 'three'


def test_a_child_that_hangs_is_killed() -> None:
    child = fork(lambda: time.sleep(60))
    assert child is not None
    begin = time.monotonic()
    assert child.results(timeout=0.2) == []
    assert time.monotonic() - begin < 10


def test_a_lost_folder_is_one_warning_and_never_raises() -> None:
    told: list[BaseException] = []
    store = make_store(on_failure=told.append)
    FOLDER.write_text('a file in the place of the folder')
    with pytest.warns(MemprofWarning) as warnings:
        store.save([text()], stamp())
        store.save([text()], stamp())
        store.close(20)
    assert told
    assert sum('nothing can be written' in str(warning.message) for warning in warnings) <= 1


def test_a_folder_that_somebody_removes_is_made_again_and_only_what_is_in_it_is_counted() -> None:
    store = make_store()
    store.save([text()], stamp(1))
    assert store.flush(20)
    store.save([text()], stamp(2), inline=True)
    shutil.rmtree(FOLDER)
    store.save([text()], stamp(3))
    assert store.flush(20)
    store.leave_out(text(), stamp(4), 'no room')
    with pytest.warns(MemprofWarning, match='left out'):
        store.close(20)
    assert {entry.path: entry.status for entry in entries(FOLDER)} == {
        'rank0.3.txt': 'saved',
        'rank0.4.skipped.txt': 'skipped',
    }
    assert store.count_files() == 1


def test_a_growing_file_exists_from_its_first_line() -> None:
    store = make_store()
    growing = store.grow('thing', '.txt', stamp(0))
    growing.write('one')
    assert (FOLDER / 'rank0.0.txt').read_text() == 'one\n'
    deadline = time.monotonic() + 10
    while not (FOLDER / 'rank0.manifest.jsonl').exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [(entry.status, entry.bytes, entry.sha256) for entry in entries(FOLDER)] == [('open', None, None)]
    growing.write('two')
    growing.close()
    growing.write('lost')
    store.close(20)
    assert (FOLDER / 'rank0.0.txt').read_text() == 'one\ntwo\n'
    assert [(entry.status, entry.bytes) for entry in entries(FOLDER)] == [('saved', 8)]


def test_a_growing_file_is_compressed_once_complete() -> None:
    store = make_store()
    growing = store.grow('thing', '.txt', stamp(0), compress=True)
    growing.write('one')
    growing.close()
    store.close(20)
    assert gzip.decompress((FOLDER / 'rank0.0.txt.gz').read_bytes()) == b'one\n'
    assert {entry.path: entry.status for entry in entries(FOLDER)} == {
        'rank0.0.txt': 'removed',
        'rank0.0.txt.gz': 'saved',
    }


def test_two_stores_share_a_folder_and_its_manifest() -> None:
    stores = [make_store(), make_store()]
    for store in stores:
        store.save([text()], stamp())
    for store in stores:
        store.close(20)
    assert sorted(entry.path for entry in entries(FOLDER)) == ['rank0.4.2.txt', 'rank0.4.txt']


class Locks:
    """Locks that the first ``stuck`` forked children do not get."""

    def __init__(self, stuck: int) -> None:
        self.parent, self.stuck, self.forked = os.getpid(), stuck, 0

    def try_locks(self) -> None:
        if os.getpid() == self.parent:
            self.forked += 1
        elif self.forked <= self.stuck:
            time.sleep(60)


def test_a_child_that_does_not_get_its_locks_is_killed_and_another_one_forked() -> None:
    locks = Locks(stuck=2)
    child = fork(lambda: ['done'], ReadAtFork(lambda: None, locks.try_locks))
    assert child is not None and child.results(20) == ['done']
    assert locks.forked == 3


def test_if_no_child_gets_its_locks_the_data_is_read_before_save_returns() -> None:
    locks, read = Locks(stuck=100), []
    children = set(psutil.Process().children())
    store = make_store()
    store.save([text()], stamp(), read_at_fork=ReadAtFork(lambda: read.append(os.getpid()), locks.try_locks))
    assert read == [os.getpid()]
    store.close(20)
    assert [entry.status for entry in entries(FOLDER)] == ['saved']
    assert set(psutil.Process().children()) <= children, 'a child that gave up is left'


def test_windows_that_are_read_at_the_fork_are_written_in_order() -> None:
    store = make_store()
    for number in range(3):
        kept: dict[str, int] = {}

        def write(path: Path, kept: dict[str, int] = kept) -> None:
            time.sleep(0.1 * (2 - kept['number']))  # the first takes longest
            path.write_text(str(kept['number']))

        parts = [Part('thing', '.txt', write), Part('thing.page', '.html', write)]
        read_at_fork = ReadAtFork(lambda kept=kept, number=number: kept.update(number=number), lambda: None)
        store.save(parts, stamp(), read_at_fork=read_at_fork)
        assert kept == {}, 'a child has read it'
    store.close(20)
    for number, suffix in enumerate(('', '.2', '.3')):
        assert {(FOLDER / f'rank0.4{suffix}{end}').read_text() for end in ('.txt', '.html')} == {str(number)}


def test_no_thread_is_left_after_the_close() -> None:
    before = set(threading.enumerate())
    store = make_store(MemoryDestination(), 'far/{batch}.txt')
    store.save([text()], stamp())
    store.close(20)
    assert set(threading.enumerate()) <= before


def test_a_signal_is_deferred_to_the_end_of_the_block() -> None:
    came: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: came.append('stopped'))
    try:
        with uninterrupted(), uninterrupted():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
            came.append('handed over')
        assert came == ['handed over', 'stopped']
        os.kill(os.getpid(), signal.SIGTERM)
        assert came[-1] == 'stopped' and len(came) == 3
    finally:
        signal.signal(signal.SIGTERM, before)


def test_results_of_a_child_come_through_a_descriptor_above_1023() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f'this machine allows {hard} open files')
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        child = fork(lambda: ['heard'])
        assert child is not None and child.pipe > 1023
        assert child.results(20) == ['heard']
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_files_next_to_that_of_a_failed_part_are_removed_too() -> None:
    def fail(path: Path) -> None:
        Path(f'{path}.tmp').write_text('half')
        raise OSError('disk full, say')

    store = make_store()
    with pytest.warns(MemprofWarning, match='disk full, say'):
        store.save([Part('thing', '.txt', fail)], stamp())
        store.close(20)
    assert [path.name for path in FOLDER.iterdir()] == ['rank0.manifest.jsonl']
