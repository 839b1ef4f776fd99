"""Uploads happen in a process of their own: no work of theirs is the training's, and its death costs no file."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import fsspec
import fsspec.config
import psutil
import pytest

from composer_memprof.artifacts.uploading.destinations import FsspecDestination
from composer_memprof.artifacts.uploading.process import start as upload_process
from composer_memprof.artifacts.uploading.process.serve import READY
from composer_memprof.artifacts.uploading.process.start import UploadFailedError, UploadProcess
from composer_memprof.artifacts.writing.child.fork import is_own_child
from tests.conftest import child_environment, wait_for
from tests.support.fault_proxy import FaultProxy, Faults
from tests.support.processes import warm_python

ADDRESS = 's3://runs/x/file.bin'


@pytest.fixture
def uploads() -> Iterator[UploadProcess]:
    made = UploadProcess()
    yield made
    made.stop()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / 'file.bin'
    made.write_bytes(b'content')
    return made


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[FaultProxy]:
    with FaultProxy(s3_endpoint) as made:
        yield made


def process_of(uploads: UploadProcess) -> psutil.Process:
    assert uploads._running is not None
    return psutil.Process(uploads._running._process.pid)


def upload_on_a_thread(uploads: UploadProcess, proxy: FaultProxy, path: Path) -> tuple[threading.Thread, list[Any]]:
    """Begin an upload that stalls; returns its thread, and what comes of it."""
    outcomes: list[Any] = []

    def upload() -> None:
        try:
            outcomes.append(uploads.upload(FsspecDestination({'endpoint_url': proxy.url}), path, ADDRESS).name)
        except UploadFailedError as error:
            outcomes.append(error)

    proxy.faults = Faults(stalled=1, stall_s=300, only='PUT', times=1)
    thread = threading.Thread(target=upload)
    thread.start()
    wait_for(lambda: proxy.done == ['stalled'], 60)
    return thread, outcomes


def test_an_upload_is_another_processs_work_which_gives_way_to_the_training(
    s3: Any, uploads: UploadProcess, path: Path
) -> None:
    options = {'key': os.environ['AWS_ACCESS_KEY_ID'], 'secret': os.environ['AWS_SECRET_ACCESS_KEY']}
    sent = uploads.upload(FsspecDestination(options), path, ADDRESS)
    assert (sent.name, sent.status, s3.cat('runs/x/file.bin')) == (ADDRESS, 'uploaded', b'content')
    process = process_of(uploads)
    assert process.pid != os.getpid() and process.nice() > psutil.Process().nice()
    assert Path(f'/proc/{process.pid}/oom_score_adj').read_text() == '1000\n'
    assert not any(secret in ' '.join(process.cmdline()) for secret in options.values())
    loaded = Path(f'/proc/{process.pid}/maps').read_text()
    assert 'libtorch' not in loaded and process.memory_info().rss < 250e6


def test_it_ends_when_nobody_needs_it(s3: Any, uploads: UploadProcess, path: Path) -> None:
    before = set(threading.enumerate())  # of earlier tests, whose store may not answer
    uploads.upload(FsspecDestination(), path, ADDRESS)
    process = process_of(uploads)
    (reader,) = (each for each in set(threading.enumerate()) - before if each.name == 'memprof-upload-answers')
    uploads.stop()
    wait_for(lambda: not process.is_running(), 20)
    wait_for(lambda: not reader.is_alive(), 20)


def test_a_killed_process_is_replaced_and_the_file_is_stored_once(
    s3: Any, proxy: FaultProxy, uploads: UploadProcess, path: Path
) -> None:
    thread, outcomes = upload_on_a_thread(uploads, proxy, path)
    process_of(uploads).kill()
    thread.join(60)
    assert outcomes == [ADDRESS] and s3.find('runs') == ['runs/x/file.bin']


def test_an_upload_that_kills_every_process_fails(
    s3: Any, proxy: FaultProxy, uploads: UploadProcess, path: Path
) -> None:
    thread, outcomes = upload_on_a_thread(uploads, proxy, path)
    proxy.done.clear()
    proxy.faults = Faults(stalled=1, stall_s=300, only='PUT', times=1)
    process_of(uploads).kill()
    wait_for(lambda: proxy.done == ['stalled'], 60)
    process_of(uploads).kill()
    thread.join(60)
    assert [str(outcome) for outcome in outcomes] == [
        'the process that uploads was killed, perhaps because memory ran out'
    ]


def test_an_error_has_its_type(s3: Any, uploads: UploadProcess, path: Path) -> None:
    with pytest.raises(UploadFailedError, match=r'^FileNotFoundError: ') as caught:
        uploads.upload(FsspecDestination(), path, 's3://no-such-bucket/file.bin')
    assert 'Traceback' in caught.value.traceback


def test_it_does_not_outlive_the_training(s3: Any, path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from composer_memprof.artifacts.uploading.destinations import FsspecDestination
from composer_memprof.artifacts.uploading.process.start import UploadProcess
uploads = UploadProcess()
uploads.upload(FsspecDestination(), Path({str(path)!r}), {ADDRESS!r})
print(uploads._running._process.pid, flush=True)
if not os.fork():  # as a DataLoader's worker, which has the pipe too
    import time
    time.sleep(30)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    run = warm_python.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True, env=child_environment())
    assert run.stdout is not None
    process = int(run.stdout.readline())
    assert run.wait() == -signal.SIGKILL
    wait_for(lambda: not psutil.pid_exists(process) or psutil.Process(process).status() == 'zombie', 20)


def test_credentials_that_the_training_has_renewed_are_used(
    s3: Any, uploads: UploadProcess, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads.upload(FsspecDestination(), path, ADDRESS)
    first = process_of(uploads).pid
    uploads.upload(FsspecDestination(), path, ADDRESS)
    assert process_of(uploads).pid == first
    monkeypatch.setenv('AWS_ACCESS_KEY_ID', 'renewed')
    uploads.upload(FsspecDestination(), path, ADDRESS)
    assert process_of(uploads).environ()['AWS_ACCESS_KEY_ID'] == 'renewed'


@pytest.mark.parametrize('failure', [OSError(11, 'no more processes'), None])
def test_where_no_process_can_be_started_it_uploads_here(
    s3: Any, uploads: UploadProcess, path: Path, monkeypatch: pytest.MonkeyPatch, failure: Optional[OSError]
) -> None:
    def start(*arguments: Any, **options: Any) -> Any:
        if failure is not None:
            raise failure
        return subprocess.Popen(['false'])

    monkeypatch.setattr(upload_process, 'start_python', start)
    assert uploads.upload(FsspecDestination(), path, ADDRESS).name == ADDRESS
    assert s3.cat('runs/x/file.bin') == b'content'
    assert uploads._failed_starts == 1


class OwnClient(FsspecDestination):
    """As a user's."""


@pytest.mark.parametrize(
    ('destination', 'address'),
    [
        (FsspecDestination(), 'memory://runs/file.bin'),
        (OwnClient(), ADDRESS),
        (FsspecDestination({'session': object()}), ADDRESS),
        (FsspecDestination({'config_kwargs': {1: 'a number is no key of JSON'}}), ADDRESS),
    ],
)
def test_what_another_process_can_not_do_is_done_here(destination: FsspecDestination, address: str) -> None:
    assert upload_process._options_elsewhere(destination, address) is None


def test_a_users_own_filesystem_is_used_here(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(fsspec.AbstractFileSystem):
        protocol = 's3'

    monkeypatch.setattr(upload_process, 'registry', {'s3': Own})
    assert upload_process._options_elsewhere(FsspecDestination(), ADDRESS) is None


def test_what_the_program_set_in_fsspecs_config_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, 's3', {'endpoint_url': 'http://config', 'key': 'of the config'})
    options = upload_process._options_elsewhere(FsspecDestination({'key': 'given'}), ADDRESS)
    assert options == {'endpoint_url': 'http://config', 'key': 'given'}


def test_nothing_in_the_current_folder_is_imported(s3: Any, uploads: UploadProcess, path: Path) -> None:
    Path('tenacity.py').write_text("open('imported', 'w')")
    uploads.upload(FsspecDestination(), path, ADDRESS)
    process_of(uploads)
    assert not Path('imported').exists()


def test_it_is_no_process_of_the_users(s3: Any, uploads: UploadProcess, path: Path) -> None:
    uploads.upload(FsspecDestination(), path, ADDRESS)
    process = process_of(uploads)
    assert is_own_child(process.pid)
    uploads.stop()
    wait_for(lambda: not is_own_child(process.pid), 20)


def test_a_fork_of_the_training_uploads_with_a_process_of_its_own(s3: Any, uploads: UploadProcess, path: Path) -> None:
    uploads.upload(FsspecDestination(), path, ADDRESS)
    first = process_of(uploads)
    uploads._lock.acquire()  # as a thread may at the fork
    forked = os.fork()
    if not forked:
        try:
            uploads.upload(FsspecDestination(), path, 's3://runs/forked.bin')
            os._exit(0 if process_of(uploads).pid != first.pid else 1)
        finally:
            os._exit(2)
    uploads._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert first.is_running() and s3.cat('runs/forked.bin') == b'content'


def test_a_process_without_work_ends() -> None:
    code = """
import sys
from composer_memprof.artifacts.uploading.process import serve as upload_server
upload_server._IDLE_S = 0.5
upload_server.serve_uploads(int(sys.argv[1]))
"""
    begin = time.monotonic()
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, '-c', code, str(theirs.fileno())]
        process = warm_python.Popen(command, pass_fds=[theirs.fileno()], env=child_environment())
    with ours, ours.makefile('rb') as answers:
        assert answers.read() == READY
    assert process.wait(30) == 0 and time.monotonic() - begin < 60
