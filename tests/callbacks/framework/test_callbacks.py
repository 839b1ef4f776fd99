"""What holds for every callback: the training comes first, and they behave as those of Composer."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import os
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import composer.callbacks
import composer.profiler
import pytest
import torch
import torch.distributed
from composer.core import Callback
from composer.loggers import InMemoryLogger

import composer_memprof
from composer_memprof import MemorySnapshot, Memray, TorchProfiler, VizTracer
from composer_memprof.callbacks.framework.base import ProfilingCallback
from composer_memprof.callbacks.registry import CALLBACKS
from composer_memprof.messages import MemprofWarning
from tests.conftest import entries, loader, make_trainer, train
from tests.support.callbacks.every_callback import ALL, SOON, each_callback


def losses_of(*callbacks: Callback, **more: Any) -> list[float]:
    logger = InMemoryLogger()
    train(*callbacks, loggers=[logger], **more)
    return [float(value) for value in logger.get_timeseries('loss/train/total')['loss/train/total']]


# -- the training comes first -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_losses_are_bit_identical_with_all_callbacks_and_with_none() -> None:
    bare = losses_of(batches=14)
    assert len(bare) == 14
    assert losses_of(*(make() for make in ALL), batches=14) == bare
    assert losses_of(MemorySnapshot(on_oom=True, on_exception=True), batches=14) == bare


def test_no_callback_adds_a_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    collectives = (
        *('all_reduce', 'all_gather', 'all_gather_object', 'broadcast', 'broadcast_object_list', 'barrier'),
        *('reduce', 'reduce_scatter', 'gather', 'scatter'),
    )
    for module in (torch.distributed, composer.utils.dist):
        for name in collectives:
            if hasattr(module, name):
                real = getattr(module, name)
                monkeypatch.setattr(module, name, _counting(real, f'{module.__name__}.{name}', calls))
    train(batches=14)
    without = list(calls)
    calls.clear()
    train(*(make() for make in ALL), batches=14)
    assert without, 'Composer itself uses some'
    assert calls == without


def _counting(real: Callable[..., Any], name: str, calls: list[str]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return real(*args, **kwargs)

    return counted


@each_callback
@pytest.mark.parametrize('method', ['_start', '_stop', '_batch_begins', '_prepare'])
def test_an_error_in_a_callback_is_one_warning_and_the_training_goes_on(
    make: type[ProfilingCallback], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError('a bug of ours')

    monkeypatch.setattr(make, method, fail)
    callback = make(schedule={'skip': '1ba', 'warmup': '1ba', 'active': '1ba', 'every': '3ba'})  # type: ignore[call-arg]
    with pytest.warns(MemprofWarning) as caught:
        trainer = train(callback, batches=8)
    assert trainer.state.timestamp.batch.value == 8
    assert sum('is disabled' in str(warning.message) for warning in caught) == 1
    assert not torch.autograd._profiler_enabled()


@each_callback
def test_a_disk_that_fills_up_while_training_is_one_warning(make: type, monkeypatch: pytest.MonkeyPatch) -> None:
    from composer_memprof.artifacts.reading.manifest import Manifest

    def full(*args: Any, **more: Any) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(Manifest, 'append', full)
    with pytest.warns(MemprofWarning, match='No space left on device') as caught:
        trainer = train(make(schedule={**SOON, 'every': '3ba'}), batches=9)
    assert trainer.state.timestamp.batch.value == 9
    assert len([str(warning.message) for warning in caught if 'No space left' in str(warning.message)]) == 1


# -- as Composer's callbacks behave -------------------------------------------------------------------------------


@each_callback
def test_it_is_made_without_arguments_and_leaves_a_file_with_its_defaults(make: type) -> None:
    train(make(), batches=12)
    listed = entries(Path('test-run'), make.kind)
    assert listed
    assert all(entry.status == 'saved' for entry in listed)


@pytest.mark.slow
def test_all_with_their_defaults_make_a_run_that_works() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('error', MemprofWarning)
        train(*(make() for make in ALL), batches=12)
    assert {entry.kind.split('.')[0] for entry in entries(Path('test-run'))} == {make.kind for make in ALL}


@each_callback
def test_it_survives_fit_twice_close_twice_and_another_trainer(make: type) -> None:
    callback = make(schedule=SOON)
    trainer = make_trainer(callback, batches=6)
    trainer.fit()
    trainer.fit(duration='1ep')
    trainer.close()
    callback.close(trainer.state, trainer.logger)
    train(callback, batches=6)
    windows = [entry for entry in entries(Path('test-run'), callback.kind) if entry.status == 'saved']
    assert len(windows) == 3


@each_callback
def test_it_survives_init_twice(make: type) -> None:
    callback = make(schedule=SOON)
    trainer = make_trainer(callback, batches=6)
    callback.init(trainer.state, trainer.logger)
    trainer.fit()
    trainer.close()
    assert len(entries(Path('test-run'), callback.kind)) == 1


@each_callback
def test_a_model_can_be_copied_and_saved_in_the_midst_of_a_recorded_batch(make: type) -> None:
    copies: list[Any] = []

    class Copies(Callback):
        def after_loss(self, state: Any, logger: Any) -> None:
            copies.append(copy.deepcopy(state.model))
            torch.save(state.model, io.BytesIO())

    with warnings.catch_warnings():
        warnings.simplefilter('error', MemprofWarning)
        train(make(schedule=SOON), Copies(), batches=6)
    assert len(copies) == 6
    for model in copies:
        model.net(torch.ones(1, 16)).sum().backward()


@each_callback
def test_several_trainers_live_in_one_process(make: type) -> None:
    trainers = [make_trainer(make(schedule=SOON), run_name=f'run-{i}', batches=6) for i in range(2)]
    for trainer in trainers:
        trainer.fit()
    for trainer in trainers:
        trainer.close()
    assert all(len(entries(Path(f'run-{i}'), make.kind)) == 1 for i in range(2))


@each_callback
def test_microbatches_of_any_size_and_evaluation_between_batches(make: type) -> None:
    train(
        make(schedule={**SOON, 'every': '3ba'}),
        batches=9,
        device_train_microbatch_size=3,
        eval_dataloader=loader(2),
        eval_interval='2ba',
    )
    assert len([e for e in entries(Path('test-run'), make.kind) if e.status == 'saved']) == 3


@each_callback
def test_nothing_is_left_behind_after_the_close(make: type) -> None:
    threads = set(threading.enumerate())
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    open_files = len(os.listdir('/proc/self/fd'))
    trainer = make_trainer(make(schedule=SOON), batches=6)
    hooks = _hooks(trainer.state.model)
    trainer.fit()
    trainer.close()
    assert set(threading.enumerate()) <= threads
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert _hooks(trainer.state.model) == hooks
    assert not torch.autograd._profiler_enabled()
    del trainer
    gc.collect()
    assert len(os.listdir('/proc/self/fd')) <= open_files


def _hooks(model: torch.nn.Module) -> list[int]:
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()]


@each_callback
def test_nothing_is_written_before_the_first_batch(make: type) -> None:
    trainer = make_trainer(make(), batches=6)
    assert list(Path().iterdir()) == []
    trainer.close()


@each_callback
def test_a_resumed_run_under_the_same_name_records_too_and_replaces_nothing(make: type) -> None:
    train(make(schedule=SOON), batches=5, max_duration='1ep', save_folder='checkpoints')
    first = {entry.path: entry.sha256 for entry in entries(Path('test-run'), make.kind)}
    train(make(schedule=SOON), batches=5, max_duration='2ep', load_path='checkpoints/ep1-ba5-rank0.pt')
    both = {entry.path: entry.sha256 for entry in entries(Path('test-run'), make.kind)}
    assert len(both) == 2
    assert first.items() <= both.items()


@each_callback
def test_two_of_a_kind_in_one_folder_just_work(make: type) -> None:
    # Of what follows Python calls there is one at a time.
    second = {'skip': '3ba', 'active': '2ba'} if make in (Memray, VizTracer) else SOON
    train(make(schedule=SOON), make(schedule=second), batches=6)
    assert len([e for e in entries(Path('test-run'), make.kind) if e.status == 'saved']) == 2


# -- drop-in ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('ours', 'composers'),
    [
        (MemorySnapshot, composer.callbacks.MemorySnapshot),
        (TorchProfiler, composer.profiler.TorchProfiler),
    ],
)
def test_composers_parameters_come_first_in_order_with_their_defaults(ours: type, composers: type) -> None:
    theirs = [(p.name, p.default) for p in inspect.signature(composers).parameters.values()]
    mine = [(p.name, p.default) for p in inspect.signature(ours).parameters.values()]
    assert mine[: len(theirs)] == theirs
    assert not issubclass(ours, composers)


def test_foundrys_entry_points_name_the_same_classes() -> None:
    from importlib.metadata import entry_points

    found = {point.name: point.load() for point in entry_points(group='llmfoundry_callbacks')}
    assert {name: found[name] for name in CALLBACKS} == CALLBACKS
    assert all(getattr(composer_memprof, callback.__name__) is callback for callback in CALLBACKS.values())
