"""Runs that fail, in real processes: no recording is lost, and the exit does not take too long."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from composer.core import Callback

from composer_memprof import HostRSS
from composer_memprof.artifacts.reading.manifest import find_manifests
from composer_memprof.artifacts.reading.open_files import writers_of
from composer_memprof.artifacts.uploading.push.push import push
from composer_memprof.artifacts.writing import deadlines as exiting
from composer_memprof.artifacts.writing.deadlines import Deadline
from tests.conftest import child_environment, entries, make_trainer, s3_environment, train, wait_for
from tests.support.processes import warm_python

pytestmark = pytest.mark.slow

#: A run of 30 batches with all three callbacks, whose windows are open at batch 8, when something happens.
_RUN = """
import os, signal, sys, time
from composer.core import Callback
from composer_memprof import HostRSS, MemorySnapshot, TorchProfiler
from tests.conftest import make_trainer

class Happens(Callback):
    def batch_end(self, state, logger):
        if state.timestamp.batch == 8:
            {happens}

if __name__ == '__main__':
    remote = sys.argv[1]
    first, second = {{'active': '2ba'}}, {{'skip': '4ba', 'active': '50ba'}}
    trainer = make_trainer(
        MemorySnapshot(schedule=first, remote_file_name=remote),
        TorchProfiler(schedule=second, remote_file_name=remote),
        HostRSS(remote_file_name=remote),
        Happens(),
        batches=30,
    )
    trainer.fit()
    {after}
"""
EXCEPTION = "raise RuntimeError('CUDA out of memory, say')"
TERMINATED = "print('ready', flush=True); time.sleep(60)"
KINDS = {
    'host_rss',
    'host_rss.summary',
    'memory_snapshot',
    'memory_snapshot.page',
    'memory_snapshot.summary',
    'torch_profiler',
    'torch_profiler.summary',
}


def start(remote: str, happens: str, endpoint: str = '', after: str = 'pass') -> subprocess.Popen[str]:
    Path('job.py').write_text(_RUN.format(happens=happens, after=after))
    environment = child_environment(**(s3_environment(endpoint) if endpoint else {}))
    return warm_python.Popen(
        [sys.executable, 'job.py', remote],
        env=environment,
        whole_exit=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_all_uploaded(s3: Any) -> None:
    listed = entries(Path('test-run'))
    assert {entry.kind for entry in listed} == KINDS
    for entry in listed:
        assert entry.status == 'uploaded', entry
        assert entry.remote is not None
        assert hashlib.sha256(s3.cat(entry.remote)).hexdigest() == entry.sha256


@pytest.mark.parametrize('after', ['pass', 'trainer.close()'])
def test_an_exception_saves_every_window_on_disk_and_in_the_store(s3: Any, s3_endpoint: str, after: str) -> None:
    job = start('s3://runs/{run_name}', EXCEPTION, s3_endpoint, after)
    _, errors = job.communicate(timeout=120)
    assert job.returncode == 1
    assert 'RuntimeError: CUDA out of memory, say' in errors, 'the exception is unchanged'
    assert_all_uploaded(s3)
    assert 'loopback-secret' not in errors + ''.join(p.read_text() for p in Path('test-run').rglob('*.manifest.jsonl'))


def test_sigterm_saves_every_window_on_disk_and_in_the_store(s3: Any, s3_endpoint: str) -> None:
    job = start('s3://runs/{run_name}', TERMINATED, s3_endpoint)
    assert job.stdout is not None
    assert job.stdout.readline() == 'ready\n'
    begin = time.monotonic()
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    assert time.monotonic() - begin < 30, 'the launcher kills after that'
    assert job.returncode == 128 + signal.SIGTERM
    assert_all_uploaded(s3)


def test_a_store_that_does_not_answer_does_not_delay_the_exit_and_files_are_kept_for_push() -> None:
    import socket

    with socket.socket() as silent:  # accepts connections and never answers
        silent.bind(('127.0.0.1', 0))
        silent.listen()
        endpoint = f'http://127.0.0.1:{silent.getsockname()[1]}'
        begin = time.monotonic()
        job = start('s3://runs/{run_name}', EXCEPTION, endpoint)
        _, errors = job.communicate(timeout=120)
        assert time.monotonic() - begin < 60
    assert 'composer-memprof push' in errors
    listed = entries(Path('test-run'))
    assert {entry.kind for entry in listed} == KINDS
    assert all(entry.status in ('saved', 'failed') for entry in listed)
    assert all((Path('test-run') / 'torch_traces' / e.path).exists() or e.kind.startswith('host_rss') for e in listed)


def test_files_of_a_killed_run_are_pushed_later(s3: Any, s3_endpoint: str) -> None:
    job = start('s3://runs/{run_name}', TERMINATED, s3_endpoint)
    assert job.stdout is not None
    assert job.stdout.readline() == 'ready\n'
    job.kill()
    job.communicate(timeout=60)
    # A child that still writes a window lists it when the window is whole.
    wait_for(lambda: not any(map(writers_of, find_manifests(Path('test-run')))), 60)
    assert all(result.error is None for result in push(Path('test-run')))
    assert {entry.kind for entry in entries(Path('test-run')) if entry.status == 'uploaded'} >= {'host_rss'}
    of_artifacts = [entry for entry in entries(Path('test-run')) if not entry.kind.endswith('.unfinished')]
    assert {entry.status for entry in of_artifacts} == {'uploaded'}


@pytest.mark.parametrize(('name', 'parts'), [('Memray', 5), ('VizTracer', 2)])
def test_sigterm_saves_an_open_window_of_a_callback_that_follows_python_calls(name: str, parts: int) -> None:
    code = _RUN.format(happens=TERMINATED, after='pass').replace('import HostRSS', f'import {name}, HostRSS')
    code = code.replace('TorchProfiler(schedule=second, remote_file_name=remote)', f'{name}(schedule=second)')
    Path('job.py').write_text(code)
    job = warm_python.Popen(
        [sys.executable, 'job.py', Path('store').absolute().as_uri()],
        env=child_environment(),
        whole_exit=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    assert job.stdout.readline() == 'ready\n'
    job.terminate()
    job.communicate(timeout=60)
    assert job.returncode == 128 + signal.SIGTERM
    found = [entry for entry in entries(Path('test-run')) if entry.kind.partition('.')[0] == name.lower()]
    saved = [entry for entry in found if entry.status == 'saved']
    assert len(saved) == parts and {entry.batch for entry in saved} == {8}
    assert [entry.status for entry in found if entry not in saved] == ['removed'] * (name == 'Memray')
    assert all((Path('test-run/memprof') / entry.path).stat().st_size == entry.bytes for entry in saved)


_DOES_NOT_FIT = "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 GiB.')"


@pytest.mark.parametrize(
    ('happens', 'mark'), [(_DOES_NOT_FIT, '.oom'), (EXCEPTION, '.exception'), (TERMINATED, '.exception')]
)
def test_a_run_that_breaks_off_outside_of_a_window_leaves_what_filled_the_memory(
    s3: Any, s3_endpoint: str, happens: str, mark: str
) -> None:
    code = _RUN.format(happens=happens, after='pass').replace('schedule=first', 'on_oom=True, on_exception=True')
    code = code.replace("'active': '50ba'", "'active': '1ba'")
    Path('job.py').write_text('import torch\n' + code)
    job = warm_python.Popen(
        [sys.executable, 'job.py', 's3://runs/{run_name}'],
        env=child_environment(**s3_environment(s3_endpoint)),
        whole_exit=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if happens == TERMINATED:
        assert job.stdout is not None
        job.stdout.readline()
        job.terminate()
    _, errors = job.communicate(timeout=60)
    assert job.returncode == (128 + signal.SIGTERM if happens == TERMINATED else 1)
    assert happens == TERMINATED or happens.split("'")[1] in errors, 'the exception is unchanged'
    stem = f'rank0.8.memory_snapshot{mark}'
    assert f'{stem}.pickle; or open ' in errors, 'where to look'
    made = {entry.path: entry for entry in entries(Path('test-run')) if entry.batch == 8 and stem in entry.path}
    assert sorted(made) == [f'{stem}.html', f'{stem}.pickle', f'{stem}.summary.json']
    for entry in made.values():
        assert entry.status == 'uploaded' and entry.remote is not None
        assert hashlib.sha256(s3.cat(entry.remote)).hexdigest() == entry.sha256
    summary = json.loads((Path('test-run/torch_traces') / f'{stem}.summary.json').read_text())
    assert summary['devices'][0]['at_failure']['batch'] == 7, 'the last that was trained'
    if mark == '.oom':
        assert 'Tried to allocate 20.00 GiB' in summary['error']


#: A run that fails in an open window, with callbacks of the user's before, between and after ours. Signals come in the
#: midst of one close.
_CLOSES = """
import os, signal, sys
from composer.core import Callback
from composer_memprof import HostRSS, MemorySnapshot, TorchProfiler
from tests.conftest import make_trainer

where, after, *names = sys.argv[1:]

def come(here):
    for name in names if here == where else []:
        if name == 'SystemExit':
            sys.exit(7)
        os.kill(os.getpid(), getattr(signal, name))

class Users(Callback):
    def __init__(self, name):
        self.name = name
    def batch_end(self, state, logger):
        if self.name == 'first' and state.timestamp.batch == 8:
            raise RuntimeError('a peer died')
    def close(self, state, logger):
        come(self.name)
        os.write(1, f'close {self.name}\\n'.encode())
    def post_close(self):
        os.write(1, f'post_close {self.name}\\n'.encode())

class Ours(HostRSS):
    def _stop(self, state, stamp):
        come('ours')
        super()._stop(state, stamp)

if __name__ == '__main__':
    trainer = make_trainer(
        Users('first'),
        Ours(),
        Users('between'),
        MemorySnapshot(schedule={'active': '2ba'}),
        TorchProfiler(schedule={'skip': '3ba', 'active': '50ba'}, with_stack=True),
        Users('last'),
    )
    try:
        trainer.fit()
    finally:
        if after == 'trainer.close()':
            trainer.close()
"""
USERS = ['first', 'between', 'last']


def close_amid(where: str, after: str, *names: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """The job, and the status of each file by its kind."""
    Path('job.py').write_text(_CLOSES)
    job = warm_python.run(
        [sys.executable, 'job.py', where, after, *names],
        env=child_environment(),
        whole_exit=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return job, {entry.kind: entry.status for entry in entries(Path('test-run'))}


@pytest.mark.parametrize(
    ('where', 'after'),
    [('first', 'exit'), ('ours', 'exit'), ('last', 'exit'), ('ours', 'trainer.close()'), ('last', 'trainer.close()')],
)
def test_signals_amid_the_closes_skip_none_of_them(where: str, after: str) -> None:
    job, files = close_amid(where, after, 'SIGTERM', 'SIGTERM', 'SIGTERM')
    said = job.stdout.split('\n')
    assert files == dict.fromkeys(KINDS, 'saved')
    assert all(f'close {user}' in said and f'post_close {user}' in said for user in USERS), said
    assert job.returncode == (1 if after == 'exit' else 128 + signal.SIGTERM)


def test_one_ctrl_c_amid_the_closes_skips_none_of_them() -> None:
    job, files = close_amid('ours', 'exit', 'SIGINT', 'SIGTERM')  # as a terminal and the launcher together send
    assert files == dict.fromkeys(KINDS, 'saved')
    assert 'post_close last' in job.stdout
    assert 'without waiting for uploads. Press Ctrl-C again to break off' in job.stderr


def test_a_second_ctrl_c_breaks_the_closes_off_and_no_profiler_keeps_the_process() -> None:
    job, files = close_amid('between', 'exit', 'SIGINT', 'SIGINT')
    assert 'close last' not in job.stdout
    assert job.returncode == 1, 'it ended by itself'
    assert 'torch_profiler' not in files
    # Nobody has waited for the child that writes it.
    wait_for(lambda: [entry.status for entry in entries(Path('test-run'), 'memory_snapshot')] == ['saved'], 60)


def test_a_close_of_the_users_that_exits_takes_no_recording_along() -> None:
    job, files = close_amid('between', 'exit', 'SystemExit')
    assert 'close last' not in job.stdout, 'Composer closes nothing after it'
    assert files == dict.fromkeys(KINDS, 'saved')
    assert job.returncode == 1


def test_ctrl_c_amid_the_closes_ends_the_wait_for_uploads() -> None:
    import socket

    with socket.socket() as silent:  # accepts connections and never answers
        silent.bind(('127.0.0.1', 0))
        silent.listen()
        Path('job.py').write_text(
            _CLOSES.replace('  Ours(', "  Ours(close_timeout=80000, remote_file_name='s3://runs/x'")
        )
        job = warm_python.run(
            [sys.executable, 'job.py', 'last', 'exit', 'SIGINT'],
            env=child_environment(**s3_environment(f'http://127.0.0.1:{silent.getsockname()[1]}')),
            whole_exit=True,
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert job.returncode == 1
    assert 'some files were not uploaded in time. Upload them with: composer-memprof push' in job.stderr


class _Closes(Callback):
    """A callback of the user's, after ours, that does something in its close."""

    def __init__(self, does: Callable[[], object]) -> None:
        self.does = does
        self.said: list[str] = []

    def close(self, state: Any, logger: Any) -> None:
        does, self.does = self.does, lambda: None
        does()
        self.said.append('close')

    def post_close(self) -> None:
        self.said.append('post_close')


@pytest.fixture
def stopped() -> Iterator[list[str]]:
    """What a handler of the user's for SIGTERM has said."""
    said: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: said.append('stopped'))
    yield said
    signal.signal(signal.SIGTERM, before)


def test_a_handler_of_the_users_is_called_once_all_are_closed(stopped: list[str]) -> None:
    last = _Closes(lambda: os.kill(os.getpid(), signal.SIGTERM))
    last.said = stopped
    train(HostRSS(), last, batches=2)
    assert stopped == ['close', 'post_close', 'stopped']


def test_signals_come_again_after_a_close_that_broke_off(stopped: list[str]) -> None:
    def broken() -> None:
        raise KeyboardInterrupt

    later = HostRSS(filename='later.jsonl')
    trainer = make_trainer(HostRSS(), _Closes(broken), later, batches=2)
    trainer.fit()
    with pytest.raises(KeyboardInterrupt):
        trainer.close()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stopped == ['stopped']
    trainer.close()
    assert {entry.status for entry in entries(Path('test-run'))} == {'saved'}
    assert [type(callback) for callback in trainer.state.callbacks[-3:]] == [HostRSS, _Closes, HostRSS], (
        'no other is left'
    )


def test_deadlines_come_sooner_once_the_process_leaves() -> None:
    exiting.stay()  # an earlier test may have let this process leave
    try:
        before = Deadline(600, if_leaving=0)
        uploads = Deadline(600, if_leaving=500, if_hurried=0)
        assert before.left() > 500
        exiting.leave()
        assert before.left() == 0 and uploads.left() > 400 and Deadline(600, if_leaving=300).left() <= 300
        exiting.leave(hurried=True)
        assert uploads.left() == 0
    finally:
        exiting.stay()
    assert before.left() > 500
