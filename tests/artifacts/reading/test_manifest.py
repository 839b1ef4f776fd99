"""Manifests and temporary files of runs that broke off: no line costs another one, and nothing is unknown."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from composer_memprof import Flops, HostRSS
from composer_memprof.artifacts.reading.locks import locked
from composer_memprof.artifacts.reading.manifest import (
    Entry,
    Manifest,
    append_line,
    find_manifests,
    read_manifest,
)
from composer_memprof.artifacts.uploading.push.push import push
from composer_memprof.artifacts.writing.temporary_files import temporary_name
from composer_memprof.messages import MemprofWarning
from tests.conftest import child_environment, entries, train, wait_for
from tests.support.processes import warm_python
from tests.support.processes.leavings import what_is_wrong
from tests.support.stores import make_store, stamp

FOLDER = Path('run')


def entry(path: str, status: str = 'saved', kind: str = 'thing') -> Entry:
    return Entry(kind, path, None, 3, 'abc', 0, 'run', 0, 4, status)  # type: ignore[arg-type]


def manifest_of(*lines: Entry) -> Path:
    manifest = Manifest.acquire(FOLDER, 0)
    for line in lines:
        manifest.append(line)
    manifest.release()
    return manifest.path


def append_on_a_disk_with(room: int, path: Path, *lines: Entry) -> int:
    """In a process whose files can grow to ``room`` bytes, which then may grow again; returns how many were refused."""
    child = os.fork()
    if not child:
        manifest, refused = Manifest(path), 0
        for number, line in enumerate(lines):
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (room if number == 0 else hard, hard))
            try:
                manifest.append(line)
            except OSError:
                refused += 1
        os._exit(refused)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_line_for_which_the_disk_has_no_room_costs_no_other_line() -> None:
    path = manifest_of(entry('a'), entry('b'))
    room = path.stat().st_size + 40
    assert append_on_a_disk_with(room, path, entry('c'), entry('d'), entry('e')) == 1, (
        'it is known that one was refused'
    )
    assert [each.path for each in read_manifest(path)] == ['a', 'b', 'd', 'e']
    paths = [json.loads(line)['path'] for line in path.read_text().splitlines() if line.endswith('}')]
    whole = [name for name in paths if not name.startswith('.attempt.')]
    assert whole == ['a', 'b', 'd', 'e'], 'the torn one has a line of its own'


def test_lines_that_are_refused_leave_no_file_open() -> None:
    Path('run').write_text('not a folder')
    before = len(os.listdir('/proc/self/fd'))
    for _ in range(5):
        with pytest.raises(OSError):
            Manifest(FOLDER / 'rank0.manifest.jsonl').append(entry('a'))
    with open('/dev/full', 'ab') as full, pytest.MonkeyPatch.context() as patch:
        patch.setattr('composer_memprof.artifacts.reading.manifest._open', lambda path: os.dup(full.fileno()))
        for _ in range(5):
            with pytest.raises(OSError):
                Manifest(Path('manifest')).append(entry('a'))
    assert len(os.listdir('/proc/self/fd')) == before


def test_a_run_that_begins_while_push_holds_its_manifest_locks_it_afterwards() -> None:
    manifest = Manifest(manifest_of(entry('a')))
    with locked(manifest.path) as free:
        assert free
        manifest.open()
    manifest._users = 1
    manifest.append(entry('b'))
    with locked(manifest.path) as free:
        assert free is False
    manifest._close()


def test_a_temporary_file_that_can_not_be_removed_keeps_no_file_from_being_pushed() -> None:
    name = temporary_name('thing').replace(f'.{os.getpid()}.', f'.{2**22 + 1}.')
    manifest_of(
        replace(entry('a'), remote='memory://pushed/a'),
        replace(entry(name, 'open'), kind='thing.unfinished', bytes=None),
    )
    (FOLDER / name).mkdir()
    (FOLDER / 'a').write_text('abc')
    assert [pushed.error for pushed in push(FOLDER)] == [None]


def test_a_growing_file_that_can_not_be_compressed_stays_as_it_is() -> None:
    store = make_store()
    growing = store.grow('thing', '.jsonl', stamp(), compress='gzip')
    growing.write('a line')
    with pytest.MonkeyPatch.context() as patch, pytest.warns(MemprofWarning, match='could not be written'):
        patch.setattr('composer_memprof.artifacts.writing.parts.compress_file', lambda *arguments: os.close(-1))
        growing.close()
        store.close(20)
    (listed,) = [each for each in entries(FOLDER) if each.path == growing.path.name]
    assert (listed.status, growing.path.read_text()) == ('saved', 'a line\n')


def test_a_line_that_another_process_is_amid_is_not_taken_for_a_torn_one(monkeypatch: pytest.MonkeyPatch) -> None:
    path = manifest_of(entry('a.txt'))
    whole = path.read_text()
    path.write_text(whole + whole[:40])
    monkeypatch.setattr(time, 'sleep', lambda seconds: path.write_text(whole * 2))  # the other process ends its line
    append_line(path, entry('b.txt'))
    assert '' not in path.read_text().splitlines()
    assert [line.path for line in read_manifest(path)] == ['a.txt', 'b.txt']


def test_a_line_glued_to_a_torn_one_is_read() -> None:
    path = manifest_of(entry('a'))
    torn = path.read_text()[:60]
    path.write_text(path.read_text() + torn + json.dumps(entry('b').as_dict()) + '\n')
    assert [each.path for each in read_manifest(path)] == ['a', 'b']


def test_a_filesystem_without_locks_links_and_syncs_takes_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> Any:
        def refusing(*arguments: Any, **keywords: Any) -> Any:
            raise OSError(number, os.strerror(number))

        return refusing

    monkeypatch.setattr(os, 'link', refuse(errno.ENOTSUP))
    monkeypatch.setattr(os, 'fsync', refuse(errno.EINVAL))
    monkeypatch.setattr(fcntl, 'flock', refuse(errno.ENOLCK))
    with warnings.catch_warnings():
        warnings.simplefilter('error', MemprofWarning)
        for _ in range(2):  # the second run's files take other names
            train(HostRSS(schedule={'active': '2ba'}), Flops(schedule={'active': '1ba'}), batches=3)
    assert what_is_wrong(Path('test-run')) == []
    saved = [each.path for each in entries(Path('test-run')) if each.status == 'saved']
    assert len(saved) == len(set(saved)) >= 6
    push(Path('test-run'))


def test_names_that_differ_in_case_only_stay_apart_where_the_filesystem_does_not_tell_them_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = os.link

    def link(source: Path, target: Path) -> None:
        if Path(target).name.lower() in [name.lower() for name in os.listdir(Path(target).parent)]:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        real(source, target)

    monkeypatch.setattr(os, 'link', link)
    for name in ('A', 'a'):
        train(Flops(schedule={'active': '1ba'}, filename=f'{name}.json'), batches=3)
    assert what_is_wrong(Path('test-run')) == []
    written = {path.name.lower() for path in Path('test-run/memprof').glob('*.json')}
    assert len(written) == len(list(Path('test-run/memprof').glob('*.json'))) >= 2


_KILLED = """
import os, signal, sys
from pathlib import Path
from composer.core import Timestamp
from composer_memprof.artifacts.naming.names import Naming, Stamp
from composer_memprof.artifacts.store import ArtifactStore, Part

def write(path):
    path.write_text('half of it')
    path.with_suffix('.aside').write_text('as torch does')
    os.kill(os.getpid(), signal.SIGKILL)

store = ArtifactStore(Path('run'), Naming('{batch}.txt', None, '.txt'))
if sys.argv[1] == 'growing':
    file = store.grow('thing.open', '.open.bin', Stamp('run', Timestamp()))
    os.kill(os.getpid(), signal.SIGKILL)
store.save([Part('thing', '.txt', write)], Stamp('run', Timestamp()), inline=sys.argv[1] == 'inline')
store.close(20)
"""


def killed_while(how: str) -> None:
    run = warm_python.run([sys.executable, '-c', _KILLED, how], env=child_environment(), timeout=120)
    assert run.returncode == (0 if how == 'child' else -signal.SIGKILL)


def test_a_growing_file_is_listed_from_its_first_byte() -> None:
    killed_while('growing')
    assert [(each.path, each.status) for each in entries(FOLDER)] == [('0.open.bin', 'open')]


def test_a_temporary_file_of_a_killed_run_is_listed_and_push_clears_it() -> None:
    killed_while('inline')
    (left,) = entries(FOLDER)
    assert (left.kind, left.status, (FOLDER / left.path).read_text()) == ('thing.unfinished', 'open', 'half of it')
    assert push(FOLDER) == [], 'nothing of it is worth sending'
    assert [path.name for path in FOLDER.iterdir()] == ['rank0.manifest.jsonl']
    assert entries(FOLDER) == []


@pytest.mark.filterwarnings('ignore:composer_memprof')
def test_a_killed_child_leaves_no_temporary_file() -> None:
    killed_while('child')
    assert what_is_wrong(FOLDER) == []
    assert [each.status for each in entries(FOLDER)] == ['failed']


def test_a_temporary_file_that_is_still_written_is_not_cleared() -> None:
    name = temporary_name('thing')
    path = manifest_of(entry(name, 'open', 'thing.unfinished'))
    (FOLDER / name).write_text('more comes')
    push(FOLDER)
    assert (FOLDER / name).exists() and len(read_manifest(path)) == 1


@pytest.mark.parametrize(('hours_ago', 'is_cleared'), [(0.5, False), (2, True)])
def test_a_temporary_file_of_another_machine_is_cleared_once_it_is_at_rest(hours_ago: float, is_cleared: bool) -> None:
    """Where a network's filesystem has no locks, nothing else tells whether its process lives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, 'gethostname', lambda: 'another')
        name = temporary_name('thing').replace(f'.{os.getpid()}.', f'.{2**22 + 1}.')  # no such process here
    manifest_of(entry(name, 'open', 'thing.unfinished'))
    (FOLDER / name).write_text('half')
    os.utime(FOLDER / name, (time.time() - hours_ago * 3600,) * 2)
    push(FOLDER)
    assert (FOLDER / name).exists() is not is_cleared


@pytest.mark.parametrize('name', ['../victim.{}', 'sub/.thing.{}', '.profile', 'weights.pt', '.*.{}'])
def test_no_other_file_is_cleared_whatever_a_manifest_says(name: str) -> None:
    ended = subprocess.Popen(['true'])
    ended.wait()
    name = name.format(temporary_name('').lstrip('.').replace(f'.{os.getpid()}.', f'.{ended.pid}.'))
    path = manifest_of(entry(name, 'open', 'thing.unfinished'))
    target = FOLDER / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text('not ours')
    push(FOLDER)
    assert target.exists()
    assert read_manifest(path) == [entry(name, 'open', 'thing.unfinished')]


def test_a_running_job_s_lines_and_a_killed_one_s_have_lines_of_their_own() -> None:
    path = manifest_of(entry('a'))
    with open(path, 'a') as file:
        file.write('{"kind": "thing", "pa')
    running = Manifest.acquire(FOLDER, 0)
    running.append(entry('b'))
    with open(path, 'a') as file:  # another process of the run
        file.write('{"kind": "thing", "pa')
    running.append(replace(entry('c'), batch=5))
    running.release()
    assert [each.path for each in read_manifest(path)] == ['a', 'b', 'c']
    wait_for(lambda: path.read_text().endswith('}\n'), 1)


@pytest.mark.parametrize(
    'change',
    [
        *({'bytes': 'many'}, {'bytes': -1}, {'bytes': True}, {'bytes': 10**400}, {'sha256': 5}, {'batch': True}),
        *({'rank': -1}, {'status': 'exploded'}, {'path': 'x' * 9000}, {'remote': 'x' * 9000}),
    ],
)
def test_a_line_of_values_that_no_run_writes_is_skipped(change: dict[str, Any]) -> None:
    path = manifest_of(entry('a', 'saved'))
    with open(path, 'a') as file:
        file.write(json.dumps({**entry('b', 'saved').as_dict(), **change}) + '\n')
    assert [each.path for each in read_manifest(path)] == ['a']


def test_a_manifest_that_is_too_large_or_no_file_is_refused_at_once() -> None:
    path = manifest_of(entry('a', 'saved'))
    with open(path, 'r+b') as file:
        file.truncate(20 << 30)
    with pytest.raises(OSError, match='at most 128 MiB'):
        read_manifest(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match='not a regular file'):
        read_manifest(path)
    assert find_manifests(FOLDER) == []
