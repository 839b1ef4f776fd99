"""MemorySnapshot: what is saved when a training fails."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.core import Callback

from composer_memprof import MemorySnapshot
from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.recorders.allocations import out_of_memory
from composer_memprof.recorders.allocations.out_of_memory import is_out_of_memory, parse_out_of_memory
from composer_memprof.recorders.torch_private import cuda_allocator
from tests.conftest import entries, make_trainer, train
from tests.support.recordings.memory_snapshots import RUN


def test_an_error_that_was_caught_is_no_reason_to_lose_the_snapshot() -> None:
    class Fails(Callback):
        def batch_end(self, state: Any, logger: Any) -> None:
            if state.timestamp.batch == 6:
                raise RuntimeError('something else')

    trainer = make_trainer(MemorySnapshot(on_exception=True), Fails())
    with pytest.raises(RuntimeError, match='something else'):
        trainer.fit()
    trainer.close()
    names = {entry.path for entry in entries(RUN, 'memory_snapshot')}
    assert 'rank0.6.memory_snapshot.exception.pickle' in names


@pytest.mark.parametrize(
    ('error', 'expected'),
    [
        (torch.OutOfMemoryError('CUDA out of memory'), True),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 400 bytes."
            ),
            True,
        ),
        (MemoryError(), True),
        (RuntimeError('shapes differ'), False),
        (None, False),
    ],
)
def test_errors_of_memory_are_told_from_others(error: Any, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_the_bytes_that_the_host_could_not_give_are_read_from_the_message() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 58)
    assert is_out_of_memory(caught.value)
    assert parse_out_of_memory(caught.value).requested == 1 << 60


def test_one_observer_serves_all_who_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    attached: list[Any] = []
    monkeypatch.setattr(cuda_allocator, 'attach_out_of_memory_observer', attached.append)
    monkeypatch.setattr(out_of_memory, '_attached', False)
    heard: list[Any] = []
    for number in range(2):
        observer = functools.partial(lambda number, *facts: heard.append((number, *facts)), number)
        out_of_memory.add_observer(observer)
        attached[0](0, 10, 20, 5)
        out_of_memory.remove_observer(observer)
    attached[0](0, 10, 20, 5)
    assert (len(attached), heard) == (1, [(0, 0, 10, 20, 5), (1, 0, 10, 20, 5)])


class Breaks(Callback):
    """Fails once, in the middle of batch 4."""

    def __init__(self) -> None:
        self.failed = False

    def after_forward(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == 4 and not self.failed:
            self.failed = True
            activation = torch.empty(10)  # lives as long as this frame, so as long as the error
            self.held = weakref.ref(activation)
            raise RuntimeError('once')


def test_what_the_failed_batch_held_is_let_go() -> None:
    breaks, callback = Breaks(), MemorySnapshot(schedule={'skip': '99ba', 'active': '1ba'}, on_exception=True)
    trainer = make_trainer(callback, breaks)
    with contextlib.suppress(RuntimeError):
        trainer.fit()
    trainer.close()
    del trainer
    gc.collect()
    assert breaks.held() is None


class RunsOut(Callback):
    """The host has not enough memory in batch 5, for what nobody could give."""

    def before_loss(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == 5:
            torch.empty(1 << 58)


def test_an_out_of_memory_error_that_the_user_caught_is_saved_before_the_user_goes_on() -> None:
    trainer = make_trainer(MemorySnapshot(schedule={'skip': '99ba', 'active': '1ba'}, on_oom=True), RunsOut())
    with contextlib.suppress(RuntimeError):
        trainer.fit()
    assert not torch.autograd._profiler_enabled(), 'nothing that follows is recorded'
    trainer.close()
    report = report_on(load_snapshot(RUN / 'rank0.5.memory_snapshot.oom.pickle'))
    assert report.oom is not None and report.oom.requested == 1 << 60
    assert "can't allocate memory" in report.error
    assert 'fit' not in vars(trainer), 'the Trainer is as it was'


def test_so_is_one_that_the_user_turned_into_another_error() -> None:
    class Translates(RunsOut):
        def before_loss(self, state: Any, logger: Any) -> None:
            try:
                super().before_loss(state, logger)
            except RuntimeError as error:
                raise ValueError('the batch is too large') from error

    trainer = make_trainer(MemorySnapshot(on_oom=True), Translates())
    with contextlib.suppress(ValueError):
        trainer.fit()
    trainer.close()
    report = report_on(load_snapshot(RUN / 'rank0.5.memory_snapshot.oom.pickle'))
    assert report.error == 'ValueError: the batch is too large' and report.oom is not None


def test_each_fit_that_breaks_off_leaves_its_snapshot_and_another_error_leaves_none() -> None:
    runs_out, breaks = RunsOut(), Breaks()
    trainer = make_trainer(MemorySnapshot(schedule={'skip': '99ba', 'active': '1ba'}, on_oom=True), runs_out, breaks)
    for expected in ('once', "can't allocate memory", "can't allocate memory"):
        with pytest.raises(RuntimeError, match=expected):
            trainer.fit()
    trainer.close()
    names = [entry.path for entry in entries(RUN, 'memory_snapshot')]
    assert names == ['rank0.5.memory_snapshot.oom.pickle', 'rank0.5.memory_snapshot.oom.2.pickle']


def test_a_fit_after_a_failed_one_saves_the_first_ones_snapshot_and_records_its_own() -> None:
    trainer = make_trainer(MemorySnapshot(schedule={'skip': '3ba', 'active': '1ba'}, on_exception=True), Breaks())
    with pytest.raises(RuntimeError, match='once'):
        trainer.fit()
    trainer.fit()
    trainer.close()
    names = [entry.path for entry in entries(RUN, 'memory_snapshot')]
    assert any('.exception.' in name for name in names) and len(names) >= 2


def test_another_trainer_after_a_failed_one_records_as_if_nothing_had_been() -> None:
    broken = make_trainer(
        MemorySnapshot(schedule={'skip': '99ba', 'active': '1ba'}, on_exception=True), Breaks(), run_name='broken'
    )
    with pytest.raises(RuntimeError, match='once'):
        broken.fit()
    train(MemorySnapshot())
    assert [entry.status for entry in entries(RUN, 'memory_snapshot')] == ['saved']
    assert any('.exception.' in entry.path for entry in entries(Path('broken'), 'memory_snapshot'))
    broken.close()


def test_what_there_was_at_the_failure_is_told_apart_from_the_peak() -> None:
    class Runs(Callback):
        def before_loss(self, state: Any, logger: Any) -> None:
            if state.timestamp.batch == 5:
                torch.empty(1 << 20)
                self.kept = torch.empty(1 << 18)
                raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 GiB.')

    trainer = make_trainer(MemorySnapshot(on_oom=True), Runs())
    try:
        trainer.fit()
    except torch.OutOfMemoryError:
        trainer.close()
    answer = report_on(load_snapshot(RUN / 'rank0.5.memory_snapshot.oom.pickle'))
    (device,) = answer.devices
    assert device.at_failure is not None and answer.oom is not None
    assert device.peak.bytes >= 4 << 20 > device.at_failure.bytes >= 1 << 20
    assert (answer.oom.batch, answer.oom.phase) == (5, 'forward')
