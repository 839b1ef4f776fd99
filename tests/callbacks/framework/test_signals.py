"""Handlers of signals: what they raise is the user's, wherever the signal comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.core import Callback

from composer_memprof import HostRSS, SavedTensorsHook, signals
from composer_memprof.callbacks.registry import CALLBACKS
from tests.conftest import Noise, child_environment, entries, make_trainer
from tests.support.processes import warm_python

SOON = {'skip': '1ba', 'active': '2ba'}


class TooSlow(Exception):
    """What the user's handler raises."""


def stop(number: int, frame: object) -> None:
    raise TooSlow


@pytest.fixture
def watchdog() -> Iterator[None]:
    """A handler of the user's that raises."""
    before = signal.signal(signal.SIGALRM, stop)
    yield
    assert signal.getsignal(signal.SIGALRM) is stop, 'it is in its place again'
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def no_nohup() -> Iterator[None]:
    """As in a terminal, also where the tests were started with nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def alarm() -> None:
    os.kill(os.getpid(), signal.SIGALRM)


def comes_in(callback: Callback, method: str) -> Callback:
    """Let the signal come in the midst of ``method`` of a callback."""
    original = getattr(callback, method)

    def interrupted(*arguments: Any) -> Any:
        alarm()
        return original(*arguments)

    setattr(callback, method, interrupted)
    return callback


@pytest.mark.usefixtures('watchdog')
@pytest.mark.parametrize('method', ['_start', '_batch_ended', '_stop'])
@pytest.mark.parametrize('make', list(CALLBACKS.values()), ids=lambda make: make.__name__)
def test_what_a_handler_raises_in_the_midst_of_a_callback_ends_the_training(make: Any, method: str) -> None:
    trainer = make_trainer(comes_in(make(schedule=SOON), method), batches=6)
    with pytest.raises(TooSlow):
        trainer.fit()
    trainer.close()
    if method == '_stop':
        assert 'saved' in {entry.status for entry in entries(Path('test-run')) if entry.kind.startswith(make.kind)}


@pytest.mark.usefixtures('watchdog')
def test_what_a_handler_raises_while_the_last_window_is_saved_ends_the_training_and_loses_no_window() -> None:
    trainer = make_trainer(comes_in(SavedTensorsHook(schedule={'skip': '1ba', 'active': '9ba'}), '_stop'), batches=3)
    with pytest.raises(TooSlow):
        trainer.fit()
    trainer.close()
    assert 'saved' in {entry.status for entry in entries(Path('test-run'))}


@pytest.mark.usefixtures('watchdog')
def test_what_a_handler_raises_while_a_callback_closes_costs_no_file() -> None:
    trainer = make_trainer(comes_in(HostRSS(), '_before_close'), batches=3)
    trainer.fit()
    trainer.close()  # Composer logs what a close raises
    assert {entry.status for entry in entries(Path('test-run'))} == {'saved'}


def pack(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.shape == (32, 1):
        alarm()
    return tensor.detach()


def unpack(saved: torch.Tensor) -> torch.Tensor:
    return saved


@pytest.mark.usefixtures('watchdog')
def test_what_a_handler_raises_while_autograd_calls_a_hook_ends_the_training() -> None:
    callback = SavedTensorsHook(schedule=SOON, saved_tensors_funcs=[pack, unpack])
    trainer = make_trainer(callback, batches=6)
    with pytest.raises(TooSlow):
        trainer.fit()
    trainer.close()


class SetsItsOwn(Callback):
    """A timeout for each batch, as users write it: set before, and what was there is set again after it."""

    def batch_start(self, state: Any, logger: Any) -> None:
        self.before = signal.signal(signal.SIGALRM, stop)

    def batch_end(self, state: Any, logger: Any) -> None:
        signal.signal(signal.SIGALRM, self.before)


def test_a_handler_that_is_set_anew_for_each_batch_is_heard_and_leaves_nothing() -> None:
    before = signal.getsignal(signal.SIGALRM)
    own = SetsItsOwn()
    trainer = make_trainer(comes_in(HostRSS(), '_batch_ended'), own, batches=6)
    with pytest.raises(TooSlow):
        trainer.fit()
    own.batch_end(None, None)
    trainer.close()
    assert signal.getsignal(signal.SIGALRM) is before


class OneKills(Noise):
    """The worker that loads one of its samples is killed."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 64:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def train_with_a_worker_that_is_killed() -> None:
    data = torch.utils.data.DataLoader(OneKills(800), batch_size=8, num_workers=1)
    callbacks = [make(schedule={'active': '50ba'}) for make in (HostRSS, SavedTensorsHook)]
    trainer = make_trainer(*callbacks, train_dataloader=data)
    with pytest.raises((RuntimeError, ConnectionError)):  # torch finds the end of the worker, or of its queue
        trainer.fit()
    trainer.close()


def test_torchs_own_error_about_a_killed_worker_ends_the_training() -> None:
    # In a process of its own: torch's handler raises at any line, also amid what the test's process goes on with.
    code = 'from tests.callbacks.framework.test_signals import train_with_a_worker_that_is_killed as train; train()'
    run = warm_python.run(
        [sys.executable, '-c', code],
        env=child_environment(),
        whole_exit=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr


def test_a_handler_that_returns_is_called_once_and_the_training_goes_on() -> None:
    said: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: said.append(number))
    try:
        callback = HostRSS(schedule=SOON)
        original = callback._start
        callback._start = lambda *some: (signal.raise_signal(signal.SIGUSR1), original(*some))[1]  # type: ignore
        trainer = make_trainer(callback, batches=6)
        trainer.fit()
        trainer.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert said == [signal.SIGUSR1]
    assert not signals.waiting


_HANGS_UP = """
import os, signal, sys, time
{before}
from composer.core import Callback
from composer_memprof import HostRSS, TorchProfiler
from tests.conftest import make_trainer

class HangsUp(Callback):
    def batch_end(self, state, logger):
        if state.timestamp.batch == 8:
            os.kill(os.getpid(), signal.SIGHUP)

if __name__ == '__main__':
    trainer = make_trainer(
        HostRSS(remote_file_name=sys.argv[1]),
        TorchProfiler(schedule={{'skip': '4ba', 'active': '50ba'}}, remote_file_name=sys.argv[1]),
        HangsUp(),
        batches=30,
    )
    trainer.fit()
    print('trained', trainer.state.timestamp.batch.value)
    trainer.close()
    assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
"""


def hang_up(before: str = '') -> subprocess.CompletedProcess[str]:
    Path('job.py').write_text(_HANGS_UP.format(before=before))
    return warm_python.run(
        [sys.executable, 'job.py', Path('store').absolute().as_uri()],
        env=child_environment(),
        whole_exit=True,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.usefixtures('no_nohup')
def test_a_closed_terminal_saves_and_uploads_every_window() -> None:
    job = hang_up()
    assert job.returncode == 128 + signal.SIGHUP, job.stderr
    listed = entries(Path('test-run'))
    assert {entry.kind.split('.')[0] for entry in listed} == {'host_rss', 'torch_profiler'}
    assert {entry.status for entry in listed} == {'uploaded'}


def test_nohup_stays_in_force() -> None:
    job = hang_up('signal.signal(signal.SIGHUP, signal.SIG_IGN)')
    assert job.returncode == 0, job.stderr
    assert 'trained 30' in job.stdout


@pytest.mark.usefixtures('no_nohup')
def test_a_closed_terminal_ends_the_process_as_ever_once_all_is_closed() -> None:
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    trainer = make_trainer(HostRSS(), batches=2)
    assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
    trainer.fit()
    trainer.close()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
