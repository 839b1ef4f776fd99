"""Manifests, and the push of what a run has not uploaded."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import Result
from typer.testing import CliRunner

from composer_memprof.artifacts.reading.manifest import Entry, Manifest, read_manifest
from composer_memprof.artifacts.uploading.destinations import FsspecDestination
from composer_memprof.artifacts.uploading.push.push import push, targets
from composer_memprof.artifacts.uploading.push.targets import Allowed
from composer_memprof.cli import app
from tests.conftest import child_environment
from tests.support.processes import warm_python
from tests.support.stores import FOLDER, entry


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


def pushed_by_command(*options: str, **more: Any) -> Result:
    return CliRunner().invoke(app, ['push', str(FOLDER), *options], **more)


@pytest.mark.parametrize('path', ['site-packages/x.pth', 'shelf/../site-packages/x.pth', 'link/x.pth', 'shelf/.bashrc'])
def test_push_writes_to_no_folder_of_this_machine_that_the_caller_has_not_named(path: str, tmp_path: Path) -> None:
    for name in ('run', 'shelf', 'site-packages'):
        (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / 'link').symlink_to(tmp_path / 'site-packages')
    (FOLDER / 'a').write_text('a')
    dead_manifest(entry('a', 'saved', f'file://{tmp_path}/{path}'))
    before = sorted(tmp_path.rglob('*'))
    for allowed in (None, Allowed(local=[tmp_path / 'shelf'])):
        (pushed,) = push(FOLDER, allowed=allowed)
        assert 'on this machine' in (pushed.error or '')
    refused = pushed_by_command('--allow-local', str(tmp_path / 'shelf'), '--yes')
    assert refused.exit_code != 0 and len(refused.stderr.splitlines()) == 1, refused.output
    assert sorted(tmp_path.rglob('*')) == before


@pytest.mark.slow
@pytest.mark.parametrize('name', ['a\0b/x', 'circle/x'])
def test_an_address_that_no_file_can_have_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / 'circle').symlink_to('circle')
    FOLDER.mkdir()
    (FOLDER / 'a').write_text('a')
    dead_manifest(entry('a', 'saved', f'file://{tmp_path}/{name}'))
    for options in ((), ('--allow-local', str(tmp_path))):
        refused = pushed_by_command(*options)
        assert isinstance(refused.exception, SystemExit) and refused.exit_code in (1, 2), refused.exception
        assert len(refused.stderr.splitlines()) == 1 and refused.stderr.rstrip().isprintable()


def test_push_copies_into_a_folder_of_this_machine_that_the_caller_names(tmp_path: Path) -> None:
    FOLDER.mkdir()
    (FOLDER / 'a').write_text('a')
    dead_manifest(entry('a', 'saved', f'file://{tmp_path}/shelf/x/a'))
    refused = pushed_by_command()
    assert refused.exit_code == 2 and refused.stderr == (
        f'composer-memprof: push would copy 1 file to file://{tmp_path}/shelf/x. Nothing was sent; if that is right, '
        f'add --allow-local {tmp_path}/shelf/x\n'
    )
    assert pushed_by_command('--allow-local', str(tmp_path / 'shelf')).exit_code == 0
    assert (tmp_path / 'shelf/x/a').read_text() == 'a'


def test_push_shows_the_stores_and_sends_nothing_before_somebody_agrees() -> None:
    FOLDER.mkdir()
    for name in 'abc':
        (FOLDER / name).write_text(name)
    mine, elsewhere = 'memory://confirmed/run', 's3://somebody-elses/x'
    path = dead_manifest(entry('a', 'saved', f'{mine}/a'), entry('b', 'failed', f'{mine}/deep/b'))
    shown = pushed_by_command()
    assert shown.exit_code == 2 and len(shown.stderr.splitlines()) == 1
    assert f'push would send 2 files to {mine}. Nothing was sent; if that is right, add --yes' in shown.stderr
    assert {each.status for each in read_manifest(path)} == {'saved', 'failed'}
    assert [(each.address, each.files) for each in targets(FOLDER)] == [(mine, 2)]
    dead_manifest(entry('c', 'saved', elsewhere))  # after the question was shown
    results = push(FOLDER, allowed=Allowed(places=[mine]))
    assert [(each.path.name, each.error) for each in results if each.error] == [
        ('c', 'it is in a place that was not confirmed')
    ]
    assert {each.path: each.status for each in read_manifest(path)} == {'a': 'uploaded', 'b': 'uploaded', 'c': 'saved'}


@pytest.mark.parametrize(('answer', 'code', 'status'), [(b'n\n', 1, 'saved'), (b'y\n', 0, 'uploaded')])
def test_on_a_terminal_push_asks(answer: bytes, code: int, status: str) -> None:
    FOLDER.mkdir()
    (FOLDER / 'a').write_text('a')
    path = dead_manifest(entry('a', 'saved', 'memory://asked/a'))
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    command = [sys.executable, '-m', 'composer_memprof', 'push', str(FOLDER)]
    done = subprocess.run(command, stdin=theirs, stdout=theirs, stderr=theirs, env=child_environment(), timeout=60)
    said = os.read(ours, 4000)
    assert b'Send 1 file to memory://asked?' in said, said
    assert (done.returncode, read_manifest(path)[0].status) == (code, status), said
    os.close(ours)
    os.close(theirs)


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
        'from tests.support.stores import entry\n'
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
    command = CliRunner().invoke(app, ['push', str(FOLDER), '--yes'])
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
        [sys.executable, '-m', 'composer_memprof.cli', 'push', 'run', '--json', '--yes', '--allow-local', 'shelf'],
        capture_output=True,
        text=True,
        env=child_environment(),
    )
    reports = [json.loads(line) for line in run.stdout.splitlines()]
    assert {Path(report['path']).name: report['error'] is None for report in reports} == {'a': True, 'b': False}
    assert run.returncode == 1
    assert Path('shelf/a').read_text() == 'a'


LOCKS = """
import sys
from pathlib import Path
from composer_memprof.artifacts.reading.locks import locked
with locked(Path(sys.argv[1])) as free:
    print(free, flush=True)
    sys.stdin.readline()
"""


def test_a_second_push_at_once_says_that_another_one_is_at_work() -> None:
    FOLDER.mkdir()
    (FOLDER / 'a').write_text('a')
    path = dead_manifest(entry('a', 'saved', 'memory://twice/a'))
    command = [sys.executable, '-c', LOCKS, str(path)]
    settings = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE, 'text': True, 'env': child_environment()}
    with warm_python.Popen(command, **settings) as other:
        assert other.stdout is not None and other.stdout.readline() == 'True\n'
        (refused,) = push(FOLDER)
        assert (refused.error or '').startswith(f'another push is at work on it: process {other.pid} (')
        other.communicate('\n')
    (pushed,) = push(FOLDER)
    assert pushed.error is None
