"""Uploads to a store that fails: nothing is lost, stored twice or torn, and nobody waits for long."""

from __future__ import annotations

import hashlib
import os
import pty
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import pytest
from composer.core import Timestamp
from typer.testing import CliRunner

from composer_memprof import FSDPMemTracker, HostRSS, MemorySnapshot, SavedTensorsHook, StepTimes
from composer_memprof.artifacts.naming.names import Naming, Stamp
from composer_memprof.artifacts.reading.manifest import Entry, Manifest, read_manifest
from composer_memprof.artifacts.store import ArtifactStore, Part
from composer_memprof.artifacts.uploading import limits as upload_limits
from composer_memprof.artifacts.uploading import uploader as uploading
from composer_memprof.artifacts.uploading.destinations import FsspecDestination, Sent
from composer_memprof.artifacts.uploading.push.push import push
from composer_memprof.cli import app
from composer_memprof.messages import MemprofWarning
from tests.conftest import child_environment, entries, make_trainer, s3_environment, wait_for
from tests.support.fault_proxy import FaultProxy, Faults, many_faults
from tests.support.processes import warm_python

pytestmark = pytest.mark.slow

FOLDER = Path('run')
#: Of the storm; 500 take some minutes.
ARTIFACTS = int(os.environ.get('COMPOSER_MEMPROF_TEST_ARTIFACTS', '25'))
#: An S3 client sends more than this in parts.
IN_PARTS = 17 << 20


@pytest.fixture
def proxy(s3: Any, s3_endpoint: str) -> Iterator[FaultProxy]:
    with FaultProxy(s3_endpoint) as proxy:
        yield proxy


def options(proxy: FaultProxy) -> dict[str, Any]:
    return {'endpoint_url': proxy.url}


def save(store: ArtifactStore, content: bytes, batch: int) -> None:
    part = Part('thing', '.bin', lambda path: path.write_bytes(content))
    store.save([part], Stamp('my-run', Timestamp(batch=batch)), inline=True)


def store_of(destination: Any, remote: str = 's3://runs/x', folder: Path = FOLDER, **more: Any) -> ArtifactStore:
    return ArtifactStore(folder, Naming('rank{rank}.{batch}', remote, '.bin'), destination, **more)


def assert_stored_once(s3: Any, folder: Path = FOLDER) -> None:
    """Each file of the manifest is in the store, once and whole, and nothing else is."""
    listed = entries(folder)
    assert Counter(entry.status for entry in listed) == {'uploaded': len(listed)}
    stored = {f's3://{name}': hashlib.sha256(s3.cat(name)).hexdigest() for name in s3.find('runs')}
    assert stored == {entry.remote: entry.sha256 for entry in listed}


def unsent(name: str, status: Any, remote: Optional[str], content: bytes = b'a') -> Path:
    """A folder as a dead run leaves it: one file, and a manifest that lists it."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / name).write_bytes(content)
    manifest = Manifest.acquire(FOLDER, 0)
    sha256 = hashlib.sha256(content).hexdigest()
    manifest.append(Entry('thing', name, remote, len(content), sha256, 0, 'my-run', 0, 0, status))
    manifest.release()
    return manifest.path


# -- a store that fails -------------------------------------------------------------------------------------------


def test_no_artifact_is_lost_doubled_or_torn_by_a_store_that_fails_all_the_time(s3: Any, proxy: FaultProxy) -> None:
    proxy.faults = many_faults(5.0, 60.0) if ARTIFACTS >= 500 else many_faults(0.3, 0.5)
    store = store_of(FsspecDestination(options(proxy)))
    for batch in range(ARTIFACTS):
        save(store, os.urandom(IN_PARTS if batch % 10 == 7 else 1000 * batch), batch)
    store.close(600)
    assert {'errors', 'lost', 'cut', 'stalled'} <= set(proxy.done)
    assert len(entries(FOLDER)) == ARTIFACTS
    assert_stored_once(s3)


@pytest.mark.parametrize('size', [1000, IN_PARTS])
def test_a_file_whose_answer_was_lost_is_stored_once(s3: Any, proxy: FaultProxy, size: int) -> None:
    """An upload's answer is lost, over and over, until the store answers again."""
    proxy.faults = Faults(lost=1, only='PUT POST', times=4)
    store = store_of(FsspecDestination(options(proxy)))
    save(store, os.urandom(size), 1)
    store.close(120)
    assert proxy.done == ['lost'] * 4
    assert_stored_once(s3)


def test_a_file_is_stored_once_though_its_folder_is_gone_when_it_is_uploaded_again(s3: Any, proxy: FaultProxy) -> None:
    destination, content = FsspecDestination(options(proxy)), os.urandom(5000)
    for folder in ('first', 'second'):  # as on another node, from the same copy
        store = store_of(destination, folder=Path(folder))
        save(store, content, 1)
        store.close(60)
        assert_stored_once(s3, Path(folder))


def test_another_object_of_the_same_size_is_not_taken_for_ones_own(s3: Any, proxy: FaultProxy) -> None:
    for content in (b'one', b'two'):
        path = Path('file.bin')
        path.write_bytes(content)
        FsspecDestination(options(proxy)).upload(path, 's3://runs/x/file.bin')
    assert {name: s3.cat(name) for name in s3.find('runs')} == {
        'runs/x/file.bin': b'one',
        'runs/x/file.2.bin': b'two',
    }


def test_an_attempt_that_hangs_is_given_up_and_the_next_one_succeeds(
    s3: Any, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_limits, '_PATIENCE_S', 2.0)
    proxy.faults = Faults(stalled=1, stall_s=300, only='PUT', times=1)
    path = Path('file.bin')
    path.write_bytes(b'hello')
    FsspecDestination(options(proxy)).upload(path, 's3://runs/x/file.bin')
    assert proxy.done == ['stalled']
    assert s3.cat('runs/x/file.bin') == b'hello'


# -- several at once, within limits -------------------------------------------------------------------------------


class Meeting:
    """A destination whose uploads go on only once ``wanted`` of them have begun."""

    def __init__(self, wanted: int) -> None:
        self.barrier = threading.Barrier(wanted)
        self.errors: list[Exception] = []

    def accepts_files(self) -> bool:
        return True

    def address_of(self, name: str) -> str:
        return name

    known_address = address_of

    def upload(self, path: Path, name: str) -> Sent:
        if self.errors:
            raise self.errors.pop()
        self.barrier.wait(30)
        return Sent(name)


def test_files_are_uploaded_several_at_once() -> None:
    store = store_of(Meeting(4))
    for batch in range(8):
        save(store, b'x', batch)
    store.close(30)
    assert Counter(entry.status for entry in entries(FOLDER)) == {'uploaded': 8}


def test_the_ranks_of_a_node_share_what_it_may_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('COMPOSER_MEMPROF_UPLOAD_LIMIT', '80 MB/s')
    assert (upload_limits.files_at_once(), upload_limits.bytes_per_second()) == (4, 80e6)
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '8')
    assert (upload_limits.files_at_once(), upload_limits.bytes_per_second()) == (2, 10e6)
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '64')
    assert upload_limits.files_at_once() == 1


def test_uploads_keep_to_the_limit_on_bytes_per_second(
    s3: Any, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('COMPOSER_MEMPROF_UPLOAD_LIMIT', '8MiB')
    store = store_of(FsspecDestination(options(proxy)))
    begin = time.monotonic()
    for batch in range(2):
        save(store, os.urandom(IN_PARTS), batch)
    store.close(60)
    assert time.monotonic() - begin > 2 * IN_PARTS / (8 << 20) * 0.8
    assert_stored_once(s3)


@pytest.mark.parametrize('limit', ['fast', '0', '-3MB', '12 parsecs'])
def test_a_limit_that_is_none_is_refused_before_the_first_batch(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('COMPOSER_MEMPROF_UPLOAD_LIMIT', limit)
    with pytest.raises(ValueError, match='COMPOSER_MEMPROF_UPLOAD_LIMIT must be bytes per second for the node'):
        make_trainer(HostRSS(remote_file_name='memory://x'))


def test_an_upload_that_failed_is_tried_again_at_the_close() -> None:
    destination = Meeting(1)
    destination.errors = [PermissionError('not yet')]
    store = store_of(destination)
    with pytest.warns(MemprofWarning, match='uploading .* failed'):
        save(store, b'x', 1)
        while uploading._pool.left().files:
            time.sleep(0.01)
        assert [entry.status for entry in entries(FOLDER)] == ['failed']
        store.close(30)
    assert [entry.status for entry in entries(FOLDER)] == ['uploaded']


# -- the close ----------------------------------------------------------------------------------------------------


def test_callbacks_share_one_wait_and_one_warning_if_the_store_does_not_answer(
    proxy: FaultProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.faults.silent_until = time.monotonic() + 300
    shared: dict[str, Any] = {
        'remote_file_name': 's3://runs/{run_name}',
        'storage_options': options(proxy),
        'close_timeout': 6,
    }
    kinds = (HostRSS, StepTimes, SavedTensorsHook, FSDPMemTracker, MemorySnapshot)
    callbacks = [cls(**shared) for cls in kinds]
    trainer = make_trainer(*callbacks)
    trainer.fit()
    assert all(callback.flush() for callback in callbacks), 'else a slow machine still writes while others wait'
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            begin = time.monotonic()
            trainer.close()
            took = time.monotonic() - begin
    finally:
        proxy.faults.silent_until = 0
        wait_for(lambda: not uploading._pool.left().files, 120)  # else uploads of later tests wait for these
    assert took < 4 * 6, 'each has waited for itself'
    told = [str(warning.message) for warning in caught if 'not uploaded' in str(warning.message)]
    assert len(told) == 1 and 'within close_timeout=6 s' in told[0]
    listed = entries(Path('test-run'))
    assert told[0].startswith(f'composer_memprof: {len(listed)} files ')
    lines = [line for line in capsys.readouterr().err.splitlines() if 'waiting for' in line]
    assert len(lines) == 1 and f'waiting for {len(listed)} files (' in lines[0]


# -- through Composer's logger ------------------------------------------------------------------------------------


_JOB = """
from composer.core import Callback
from composer.loggers import RemoteUploaderDownloader
from composer_memprof import MemorySnapshot
from tests.conftest import make_trainer

class Waits(Callback):
    def batch_start(self, state, logger):
        if state.timestamp.batch == 2:
            print('ready', flush=True)
            input()

if __name__ == '__main__':
    ours = MemorySnapshot(
        schedule={'skip': '4ba', 'active': '1ba'}, folder='run', remote_file_name='shelf', num_artifacts_to_keep=0
    )
    theirs = RemoteUploaderDownloader('s3://runs', use_procs=False)
    trainer = make_trainer(Waits(), ours, loggers=[theirs], batches=100_000)
    trainer.fit()
"""


def test_what_a_killed_runs_logger_never_uploaded_is_kept_and_pushed(s3: Any, proxy: FaultProxy) -> None:
    Path('job.py').write_text(_JOB)
    environment = child_environment(S3_ENDPOINT_URL=proxy.url)
    job = warm_python.Popen(
        [sys.executable, 'job.py'], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert job.stdout is not None and job.stdin is not None
        assert job.stdout.readline() == 'ready\n'
        proxy.faults = Faults(stalled=1, stall_s=300, only='PUT')  # from now on the store takes nothing
        job.stdin.write('\n')
        job.stdin.flush()
        wait_for(lambda: [entry.status for entry in entries(FOLDER)].count('handed_over') == 3, 60)
    finally:
        job.kill()
        job.communicate(timeout=60)
    proxy.faults = Faults()
    assert s3.find('runs/shelf') == []
    assert all((FOLDER / entry.path).exists() for entry in entries(FOLDER)), 'removed before it was in the store'
    assert [pushed.error for pushed in push(FOLDER, options(proxy))] == [None] * 3
    assert len(s3.find('runs/shelf')) == 3
    assert {entry.status for entry in entries(FOLDER)} == {'uploaded'}


def test_push_finds_what_was_handed_over_in_the_store_and_does_not_store_it_again(s3: Any) -> None:
    path = unsent('a', 'handed_over', 's3://runs/x/a', b'content')
    s3.pipe('runs/x/a', b'content')
    assert [pushed.error for pushed in push(FOLDER)] == [None]
    assert [entry.status for entry in read_manifest(path)] == ['uploaded']
    assert s3.find('runs') == ['runs/x/a']


def test_push_says_if_it_can_not_tell_whether_a_file_arrived() -> None:
    unsent('a', 'handed_over', 'x/a')
    (pushed,) = push(FOLDER)
    assert pushed.error is not None and "handed over to Composer's logger" in pushed.error


# -- the push command ---------------------------------------------------------------------------------------------


def test_push_takes_storage_options_and_shows_no_value_of_them(
    s3: Any, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ('AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY', 'AWS_ENDPOINT_URL'):
        monkeypatch.delenv(name)
    path = unsent('a', 'saved', 's3://runs/x/a', b'content')
    given = ['key=an-open-key', '{"secret": "a-closed-secret"}', f'endpoint_url={s3_endpoint}']
    flags = [word for option in given for word in ('--storage-options', option)]
    run = CliRunner().invoke(app, ['push', str(FOLDER), '--yes', *flags])
    assert run.exit_code == 0, run.output
    assert s3.cat('runs/x/a') == b'content'
    wrong = CliRunner().invoke(app, ['push', str(FOLDER), '--storage-options', 'a-closed-secret'])
    assert wrong.exit_code == 2 and '--storage-options must be key=value or a JSON object' in wrong.stderr
    shown = run.output + wrong.output + path.read_text()
    assert 'a-closed-secret' not in shown and 'an-open-key' not in shown


def test_push_uploads_several_at_once_and_draws_a_bar_on_a_terminal(s3: Any, s3_endpoint: str) -> None:
    for number in range(6):
        unsent(f'file{number}', 'saved', f's3://runs/x/file{number}', os.urandom(1000))
    ours, theirs = pty.openpty()
    command = [sys.executable, '-m', 'composer_memprof', 'push', str(FOLDER), '--yes']
    environment = child_environment(**s3_environment(s3_endpoint))
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=theirs, timeout=120, check=True)
    os.close(theirs)
    assert '6 files (5.9 KiB) to upload' in os.read(ours, 1 << 16).decode()
    assert run.stdout.decode().count('uploaded ') == 6
    assert_stored_once(s3)
