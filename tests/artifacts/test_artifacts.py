"""The artifact store: names, writing, manifests, uploads, retention, push."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import fsspec
import psutil
import pytest
from composer.core import Timestamp
from typer.testing import CliRunner

from composer_memprof.artifacts.naming.addresses import check_scheme
from composer_memprof.artifacts.naming.names import Naming, Stamp, check_run_name, check_template, folder_of
from composer_memprof.artifacts.naming.numbering import before_suffix
from composer_memprof.artifacts.reading.containment import inside
from composer_memprof.artifacts.reading.manifest import Entry, Manifest, read_manifest
from composer_memprof.artifacts.store import ArtifactStore, Part
from composer_memprof.artifacts.uploading import uploader as uploading
from composer_memprof.artifacts.uploading.destinations import FsspecDestination, Sent
from composer_memprof.artifacts.uploading.process.pool import UploadPool
from composer_memprof.artifacts.uploading.push.push import push
from composer_memprof.artifacts.writing import writer as writing
from composer_memprof.artifacts.writing.child.fork import ReadAtFork, fork
from composer_memprof.artifacts.writing.deadlines import Deadline
from composer_memprof.artifacts.writing.folder import ArtifactFolder
from composer_memprof.cli import app
from composer_memprof.messages import MemprofWarning
from composer_memprof.signals import uninterrupted
from tests.conftest import child_environment, entries
from tests.support import warm_python

FOLDER = Path('run')


def stamp(batch: int = 4, mark: str = '') -> Stamp:
    return Stamp('my-run', Timestamp(epoch=1, batch=batch), mark)


def text(content: str = 'hello', kind: str = 'thing', suffix: str = '.txt', compress: bool = False) -> Part:
    return Part(kind, suffix, lambda path: path.write_text(content), compress)


def make_store(destination: Any = None, remote: Optional[str] = None, **more: Any) -> ArtifactStore:
    return ArtifactStore(FOLDER, Naming('rank{rank}.{batch}', remote, '.txt'), destination, **more)


class MemoryDestination:
    """A destination that keeps names only. Its uploads can be made to wait or to fail."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self.error: Optional[Exception] = None

    def accepts_files(self) -> bool:
        return True

    def address_of(self, name: str) -> str:
        return name

    def upload(self, path: Path, name: str) -> Sent:
        assert self.open.wait(30)
        if self.error is not None:
            raise self.error
        assert path.exists(), 'removed before it was uploaded'
        self.names.append(name)
        return Sent(name)


# -- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('template', 'words'),
    [
        ('{run_nam}/x', ['{run_nam}', "'run_name'"]),
        ('{batch}', ['{batch}', 'rank']),
        ('{}', ['{}']),
        ('{run_name', ['format string']),
        ('{run_name.__class__}', ['run_name.__class__']),
        ('{rank:{batch}}', ['rank']),
        ('', ['in quotes']),
        ('{rank:q}', ['{rank:q}']),
    ],
)
def test_an_invalid_format_string_is_refused(template: str, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        check_template(template, 'folder', ('run_name', 'rank'))
    assert all(word in str(caught.value) for word in ['folder', *words])


@pytest.mark.parametrize('run_name', ['../x', 'a/../../b', '/etc', '~root', 'a\\..\\b', 'a\nb', '', '..'])
def test_a_run_name_that_would_lead_out_of_its_folder_is_refused(run_name: str) -> None:
    with pytest.raises(ValueError, match='run_name='):
        check_run_name(run_name, '{run_name}/memprof')
    check_run_name(run_name, 'fixed/folder')  # where it is not used it does no harm


def test_a_name_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='leaves its folder'):
        Naming('a/../../b', None, '.txt').local(stamp(), '.txt', 1)
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / 'link').symlink_to(tmp_path)
    with pytest.raises(ValueError, match='is outside of'):
        inside(tmp_path / 'run', 'link/file')


def test_names_take_composers_variables_marks_and_numbers() -> None:
    naming = Naming('rank{rank}.{batch:03d}.pt.trace.json', '/traces/ep{epoch}-ba{batch}.pt.trace.json', '.json')
    assert naming.local(stamp(), '.json', 1) == 'rank0.004.pt.trace.json'
    assert naming.local(stamp(mark='.eval7'), '.json.gz', 2) == 'rank0.004.eval7.2.pt.trace.json.gz'
    assert naming.local(stamp(), '.summary.txt', 1) == 'rank0.004.pt.trace.summary.txt'
    assert naming.in_store(stamp(), '.json.gz', 3, 'ignored') == '/traces/ep1-ba4.3.pt.trace.json.gz'
    folder = Naming('a/{batch}.json', 's3://b/{run_name}/', '.json')
    assert folder.in_store(stamp(), '.json', 1, 'a/4.json') == 's3://b/my-run/a/4.json'
    assert folder_of('{run_name}/r{rank}', 'x', 3) == Path('x/r3')


def test_a_number_goes_before_the_suffix() -> None:
    assert before_suffix('a/b.json', '.2') == 'a/b.2.json'
    assert before_suffix('s3://b/a.b/rank0.4.memory_snapshot.pickle.gz', '.3') == (
        's3://b/a.b/rank0.4.memory_snapshot.3.pickle.gz'
    )
    assert before_suffix('a/b', '.2') == 'a/b.2'
    assert before_suffix('a/.hidden', '.2') == 'a/.hidden.2'


@pytest.mark.parametrize(
    ('name', 'words'),
    [
        ('s4://b/x', ['s4://', 's3']),
        ('gs://b/x', ['gs://', "pip install 'composer_memprof[gcs]'"]),
        ('s3://key:secret@host/x', ['credentials']),
        ('memory://b/a::file:///x', ['one store']),
        ('zip://a::s3://b', ['one store']),
    ],
)
def test_an_address_that_can_not_be_reached_is_refused_without_a_connection(name: str, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        check_scheme(name, 'remote_file_name')
    assert all(word in str(caught.value) for word in words)
    assert 'secret' not in str(caught.value)


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
    child = fork(lambda: (str(written) for written in writing.write_parts(folder, [text()], stamp())))
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


# -- uploading ----------------------------------------------------------------------------------------------------


def test_uploads_are_listed_with_their_name_in_the_destination() -> None:
    store = make_store(FsspecDestination(), 'memory://shelf/{run_name}')
    fsspec.filesystem('memory').pipe('/shelf/my-run/rank0.4.txt', b'an earlier run')
    store.save([text('abc')], stamp())
    store.close(20)
    (entry,) = entries(FOLDER)
    assert (entry.status, entry.remote) == ('uploaded', 'memory://shelf/my-run/rank0.4.2.txt')
    memory = fsspec.filesystem('memory')
    assert memory.cat('/shelf/my-run/rank0.4.2.txt') == b'abc'
    assert memory.cat('/shelf/my-run/rank0.4.txt') == b'an earlier run'


def test_a_failed_upload_keeps_the_file_and_says_what_to_do() -> None:
    destination = MemoryDestination()
    destination.error = PermissionError('no entry')
    store = make_store(destination, 'memory://far/{batch}.txt', keep=0)
    with pytest.warns(MemprofWarning, match='composer-memprof push .*run'):
        store.save([text()], stamp())
        store.close(20)
    assert [entry.status for entry in entries(FOLDER)] == ['failed']
    assert (FOLDER / 'rank0.4.txt').exists()


def test_an_upload_is_tried_again() -> None:
    class Flaky(FsspecDestination):
        tries = 0

        def _upload_once(self, path: Path, name: str) -> str:
            self.tries += 1
            if self.tries < 3:
                raise ConnectionResetError('try again')
            return super()._upload_once(path, name)

    flaky = Flaky()
    store = make_store(flaky, 'memory://flaky')
    store.save([text()], stamp())
    store.close(30)
    assert flaky.tries == 3
    assert [entry.status for entry in entries(FOLDER)] == ['uploaded']


def test_the_close_waits_no_longer_than_its_timeout() -> None:
    slow = MemoryDestination()
    slow.open.clear()
    destination = FsspecDestination()
    destination.upload = slow.upload  # type: ignore[method-assign]
    store = make_store(destination, 'memory://slow')
    store.save([text()], stamp())
    begin = time.monotonic()
    with pytest.warns(MemprofWarning, match='not uploaded within close_timeout'):
        store.close(0.5)
    assert time.monotonic() - begin < 5
    assert [entry.status for entry in entries(FOLDER)] == ['saved']
    slow.open.set()


def test_uploads_that_wait_for_a_thread_are_all_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploading, '_pool', UploadPool('small', lambda: 1))
    destination = MemoryDestination()
    destination.open.clear()
    store = make_store(destination, 'far/{batch}.txt')
    for batch in range(6):
        store.save([text()], stamp(batch))
    time.sleep(0.5)
    destination.open.set()
    store.close(20)
    assert sorted(destination.names) == [f'far/{batch}.txt' for batch in range(6)]
    assert {entry.status for entry in entries(FOLDER)} == {'uploaded'}


# -- retention ----------------------------------------------------------------------------------------------------


def test_the_newest_windows_are_kept_each_with_all_its_files() -> None:
    removed: list[list[Path]] = []
    store = make_store(keep=2, on_removed=removed.append)
    for batch in range(5):
        store.save([text(), text('x', 'thing.part', '.more')], stamp(batch))
    store.close(20)
    left = [entry.path for entry in entries(FOLDER) if entry.status == 'saved']
    assert left == ['rank0.3.txt', 'rank0.3.more', 'rank0.4.txt', 'rank0.4.more']
    assert sorted(path.name for path in FOLDER.iterdir() if path.suffix != '.jsonl') == sorted(left)
    assert [paths[0].name for paths in removed] == ['rank0.0.txt', 'rank0.1.txt', 'rank0.2.txt']


@pytest.mark.parametrize('compress', [False, True])
def test_files_that_complete_a_growing_file_have_its_number_and_are_kept_with_it(compress: bool) -> None:
    FOLDER.mkdir(parents=True)
    for name in ('rank0.3.txt', 'rank0.3.txt.gz'):
        (FOLDER / name).write_text('of a run that was killed')
    store = make_store(keep=2)
    for batch in range(1, 4):
        growing = store.grow('thing', '.txt', stamp(batch), compress=compress)
        growing.close(text('x', 'thing.part', '.more'))
    store.close(20)
    left = [entry.path for entry in entries(FOLDER) if entry.status == 'saved']
    gz = '.gz' if compress else ''
    assert sorted(left) == ['rank0.2.more', f'rank0.2.txt{gz}', 'rank0.3.2.more', f'rank0.3.2.txt{gz}']


def test_nothing_is_removed_before_it_is_uploaded() -> None:
    destination = MemoryDestination()
    destination.open.clear()
    store = make_store(destination, 'far/{batch}.txt', keep=0)
    for batch in range(3):
        store.save([text()], stamp(batch))
    store._writer.wait(Deadline(20, if_leaving=20))
    assert len(list(FOLDER.glob('*.txt'))) == 3
    destination.open.set()
    store.close(20)
    assert not list(FOLDER.glob('*.txt'))
    assert {entry.status for entry in entries(FOLDER)} == {'removed'}
    assert sorted(destination.names) == ['far/0.txt', 'far/1.txt', 'far/2.txt']


# -- manifests and push -------------------------------------------------------------------------------------------


def entry(path: str, status: Any, remote: Optional[str] = None) -> Entry:
    return Entry('thing', path, remote, None, None, 0, 'my-run', 0, 0, status)


def dead_manifest(*lines: Entry, folder: Path = FOLDER) -> Path:
    manifest = Manifest.acquire(folder, 0)
    for line in lines:
        manifest.append(line)
    manifest.release()
    return manifest.path


def test_the_last_line_of_a_path_counts_and_broken_lines_are_skipped() -> None:
    path = dead_manifest(entry('a', 'open'), entry('b', 'saved'), entry('a', 'saved'))
    with open(path, 'a') as file:
        file.write('[]\n{"kind": 1}\n' + '[' * 100_000 + '\n{"kind": "thing", "path": "c", "re')
    assert [(e.path, e.status) for e in read_manifest(path)] == [('a', 'saved'), ('b', 'saved')]
    dead_manifest(entry('d', 'saved'))  # goes on after the line that a kill cut short
    assert [e.path for e in read_manifest(path)] == ['a', 'b', 'd']


def test_a_line_after_the_release_leaves_no_lock_behind() -> None:
    FOLDER.mkdir()
    (FOLDER / 'a').write_text('a')
    manifest = Manifest.acquire(FOLDER, 0)
    manifest.append(entry('a', 'saved', 'memory://late/a'))
    manifest.release()
    manifest.append(entry('b', 'saved'))
    assert [pushed.error for pushed in push(FOLDER)] == [None]


def test_push_continues_after_an_unreadable_manifest_and_writes_to_the_right_one() -> None:
    FOLDER.mkdir()
    (FOLDER / 'a').write_text('a')
    path = dead_manifest(replace(entry('a', 'saved', 'memory://right/a'), rank=7))
    (FOLDER / 'rank1.manifest.jsonl').symlink_to('/etc/hostname')
    results = push(FOLDER)
    assert sorted(pushed.error is None for pushed in results) == [False, True]
    assert read_manifest(path)[0].status == 'uploaded'
    assert not (FOLDER / 'rank7.manifest.jsonl').exists()


@pytest.mark.parametrize('hidden', ['.ssh/authorized_keys', '.bashrc'])
def test_push_writes_to_no_hidden_path_of_this_machine(hidden: str, tmp_path: Path) -> None:
    FOLDER.mkdir()
    (FOLDER / 'a').write_text('a')
    dead_manifest(entry('a', 'saved', f'file://{tmp_path}/home/{hidden}'))
    (pushed,) = push(FOLDER)
    assert pushed.error is not None
    assert not (tmp_path / 'home').exists()


def test_many_uploads_to_one_local_name_lose_none(tmp_path: Path) -> None:
    destination, names = FsspecDestination(), []
    for number in range(8):
        (tmp_path / f'{number}').write_text(str(number))

    def upload(number: int) -> None:
        names.append(destination.upload(tmp_path / f'{number}', f'file://{tmp_path}/shelf/x.txt'))

    threads = [threading.Thread(target=upload, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(names)) == 8
    assert {path.read_text() for path in (tmp_path / 'shelf').iterdir()} == set('01234567')


def test_push_uploads_files_that_are_not_uploaded_and_a_dead_runs_open_files() -> None:
    FOLDER.mkdir()
    for name in 'abcd':
        (FOLDER / name).write_text(name)
    path = dead_manifest(
        entry('a', 'saved', 'memory://push/a'),
        entry('b', 'failed', 'memory://push/b'),
        entry('c', 'open', 'memory://push/c'),
        entry('d', 'uploaded', 'memory://push/d'),
        entry('e', 'saved'),
    )
    results = push(FOLDER.parent)
    assert sorted((pushed.path.name, pushed.error) for pushed in results) == [('a', None), ('b', None), ('c', None)]
    assert {e.path: e.status for e in read_manifest(path)} == {
        **dict.fromkeys('abcd', 'uploaded'),
        'e': 'saved',
    }
    assert next(e for e in read_manifest(path) if e.path == 'c').sha256 == hashlib.sha256(b'c').hexdigest()
    assert push(FOLDER) == []


def test_push_leaves_the_files_of_a_running_job_alone_and_says_which_process_that_is() -> None:
    code = (
        'import sys\nfrom pathlib import Path\n'
        'from composer_memprof.artifacts.reading.manifest import Manifest\n'
        'from tests.artifacts.test_artifacts import entry\n'
        "manifest = Manifest.acquire(Path('run'), 0)\n"
        "manifest.append(entry('a', 'open', 'memory://push/live'))\n"
        "print('ready', flush=True)\nsys.stdin.readline()\n"
    )
    job = warm_python.Popen(
        [sys.executable, '-c', code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
    assert job.stdout is not None
    assert job.stdout.readline() == 'ready\n'
    (FOLDER / 'a').write_text('a')
    (held,) = push(FOLDER)
    assert held.error is not None and f'process {job.pid} (' in held.error
    command = CliRunner().invoke(app, ['push', str(FOLDER)])
    assert command.exit_code == 1 and f'process {job.pid} (' in command.stderr
    job.communicate('go\n', timeout=20)
    assert [pushed.error for pushed in push(FOLDER)] == [None]


@pytest.mark.parametrize('path', ['../secret', '/etc/hostname', 'link', 'missing', '.'])
def test_push_trusts_no_path_of_a_manifest(path: str, tmp_path: Path) -> None:
    (tmp_path / 'secret').write_text('secret')
    FOLDER.mkdir()
    (FOLDER / 'link').symlink_to(tmp_path / 'secret')
    dead_manifest(entry(path, 'saved', 'memory://stolen/x'))
    (pushed,) = push(FOLDER)
    assert pushed.error is not None
    assert not fsspec.filesystem('memory').exists('/stolen/x')


def test_the_push_command_reports_each_file_and_exits_1_after_an_error() -> None:
    FOLDER.mkdir()
    (FOLDER / 'a').write_text('a')
    dead_manifest(entry('a', 'saved', 'file://' + str(Path('shelf/a').absolute())), entry('b', 'saved', 'memory://x/b'))
    run = warm_python.run(
        [sys.executable, '-m', 'composer_memprof.cli', 'push', 'run', '--json'],
        capture_output=True,
        text=True,
        env=child_environment(),
    )
    reports = [json.loads(line) for line in run.stdout.splitlines()]
    assert {Path(report['path']).name: report['error'] is None for report in reports} == {'a': True, 'b': False}
    assert run.returncode == 1
    assert Path('shelf/a').read_text() == 'a'


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


def test_the_node_of_a_rank_that_torchrun_started(monkeypatch):
    """torchrun sets GROUP_RANK; Composer's own function for it raises where NODE_RANK is missing."""
    monkeypatch.delenv('NODE_RANK', raising=False)
    for name, value in {'RANK': '9', 'WORLD_SIZE': '16', 'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '8'}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv('GROUP_RANK', '1')
    monkeypatch.setattr('torch.distributed.is_initialized', lambda: True)
    monkeypatch.setattr('torch.distributed.get_rank', lambda *_: 9)
    monkeypatch.setattr('torch.distributed.get_world_size', lambda *_: 16)
    assert folder_of('{run_name}/node{node_rank}', 'run') == Path('run/node1')
    assert folder_of('{run_name}/node{node_rank}', 'run', rank=3) == Path('run/node0')
