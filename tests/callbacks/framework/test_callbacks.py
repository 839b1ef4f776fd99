"""What holds for every callback: it never changes, stops or holds up the training, and leaves nothing behind."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import os
import re
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
from composer.profiler import JSONTraceHandler, Profiler, cyclic_schedule

import composer_memprof
from composer_memprof import HostRSS, MemorySnapshot, Memray, TorchProfiler, VizTracer
from composer_memprof.callbacks.framework.base import ProfilingCallback
from composer_memprof.callbacks.registry import CALLBACKS
from composer_memprof.messages import MemprofWarning
from composer_memprof.schedule import on_ranks, window
from tests.conftest import entries, loader, make_trainer, train

ALL = list(CALLBACKS.values())
each_callback = pytest.mark.parametrize('make', ALL, ids=lambda callback: callback.__name__)
SOON = {'skip': '1ba', 'active': '2ba'}


def losses_of(*callbacks: Callback, **more: Any) -> list[float]:
    logger = InMemoryLogger()
    train(*callbacks, loggers=[logger], **more)
    return [float(value) for value in logger.get_timeseries('loss/train/total')['loss/train/total']]


# -- the training comes first -------------------------------------------------------------------------------------


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


# -- windows ------------------------------------------------------------------------------------------------------


@each_callback
def test_evaluation_is_recorded_as_a_stage_of_its_own(make: type) -> None:
    callback = make(schedule={'skip': '1ba', 'active': '2ba', 'every': '4ba', 'stages': ['eval']})
    # Three evaluations of three batches: windows over eval batches 1-2, 5-6 (cut by the end of a pass), …
    train(callback, batches=6, eval_dataloader=loader(3), eval_interval='2ba')
    paths = [entry.path for entry in entries(Path('test-run'), make.kind)]
    assert len(paths) == 3 if make is HostRSS else len(paths) >= 3
    assert all('.eval' in path for path in paths)


def test_marks_of_stages_stand_before_the_suffix() -> None:
    callback = TorchProfiler(schedule={'active': '2ba'}, stages=('eval', 'predict'))
    trainer = make_trainer(callback, batches=3, eval_dataloader=loader(3), eval_interval='1ep')
    trainer.fit()
    trainer.predict(loader(3))
    trainer.close()
    names = {entry.path for entry in entries(Path('test-run'), 'torch_profiler')}
    assert names == {'rank0.3.eval2.pt.trace.json', 'rank0.3.predict2.pt.trace.json'}


@each_callback
def test_other_ranks_are_left_alone(make: type) -> None:
    with pytest.raises(ValueError, match=r'ranks=\[1\] are beyond this run'):
        make_trainer(make(schedule=SOON, ranks=[1]))
    with pytest.raises(ValueError, match=r'ranks=\[1\] are beyond this run'):
        make_trainer(make(schedule=window('2ba') & on_ranks(1)))


@each_callback
def test_a_run_that_ends_inside_or_before_a_window_is_one_warning_and_saves_what_there_is(make: type) -> None:
    with pytest.warns(MemprofWarning, match='inside a window') as caught:
        train(make(schedule={'skip': '2ba', 'active': '99ba'}), batches=5)
    assert sum('the run ended' in str(warning.message) for warning in caught) == 1
    assert [entry.status for entry in entries(Path('test-run'), make.kind)] == ['saved']
    with pytest.warns(MemprofWarning, match='its first window comes after 99 batches, and this run has 5'):
        train(make(schedule={'skip': '99ba', 'active': '1ba'}), batches=5)


# -- bad configuration --------------------------------------------------------------------------------------------


@each_callback
@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        ({'folder': '{run_nam}'}, ['folder', '{run_nam}', "'run_name'"]),
        ({'folder': '{batch}'}, ['folder', '{batch}']),
        ({'filename': '{bach}'}, ['filename', '{bach}', "'batch'"]),
        ({'filename': '../{rank}'}, ['filename', 'leaves its folder']),
        ({'filename': '/etc/{rank}'}, ['filename', 'leaves its folder']),
        ({'remote_file_name': 's3://b/{bach}'}, ['remote_file_name', '{bach}']),
        ({'remote_file_name': 'gs://b/x'}, ['gs://', 'pip install']),
        ({'num_artifacts_to_keep': -2}, ['num_artifacts_to_keep must be', 'not -2']),
        ({'num_artifacts_to_keep': 0, 'remote_file_name': None}, ['num_artifacts_to_keep=0']),
        ({'stages': ['trian']}, ["'trian'", "'train'"]),
        ({'ranks': [-1]}, ['ranks']),
        ({'ranks': [0], 'schedule': {'active': '1ba', 'ranks': [1]}}, ['ranks=[0]', 'schedule.ranks=[1]']),
        ({'stages': ['eval'], 'schedule': {'active': '1ba', 'stages': ['predict']}}, ['eval', 'predict']),
        ({'schedule': {'active': '0.1dur'}, 'stages': ['eval']}, ['0.1dur', 'eval']),
        ({'schedule': {'actve': '1ba'}}, ['schedule.actve', "'active'"]),
        ({'close_timeout': -1}, ['close_timeout must be', 'not -1']),
        ({'close_timeout': 'abc'}, ['close_timeout must be', "not 'abc'"]),
        ({'compress': 'no_thanks'}, ['compress must be none, gzip or zstd', "not 'no_thanks'"]),
        ({'overwrite': 1}, ['overwrite must be true or false', 'not 1']),
        ({'stages': 5}, ['stages must be', 'train', 'not 5']),
        ({'filename': '{batch:q}'}, ['filename', '{batch:q}']),
    ],
)
def test_a_mistake_is_refused_at_construction_in_one_line(
    make: type, arguments: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ValueError) as caught:
        make(**arguments)
    message = str(caught.value)
    assert '\n' not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'use_gzip': 'yes'}, "use_gzip must be true or false, not 'yes'"),
        ({'num_traces_to_keep': -2}, 'num_traces_to_keep must be -1 (keep all) or a whole number from 0, not -2'),
        (
            {'num_traces_to_keep': 0, 'remote_file_name': None},
            'num_traces_to_keep=0 with remote_file_name=None would keep nothing anywhere',
        ),
    ],
)
def test_a_mistake_is_named_as_the_user_wrote_it(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f'^{re.escape(f"TorchProfiler: {message}")}$'):
        TorchProfiler(**arguments)


def test_a_function_that_is_no_schedule_is_refused_before_the_first_batch() -> None:
    def refused(function: Any) -> str:
        trainer = make_trainer(HostRSS(schedule=function))
        with pytest.raises(ValueError) as caught:
            trainer.fit()
        assert trainer.state.timestamp.batch == 0
        return str(caught.value)

    called = 'HostRSS: schedule=cyclic_schedule makes a schedule; call it: schedule=cyclic_schedule(...)'
    assert refused(composer.profiler.cyclic_schedule) == called
    assert refused(window('1ba') & composer.profiler.cyclic_schedule) == called
    assert refused(lambda state: True).endswith('must be a ProfilerAction of Composer, not True')
    with pytest.raises(ValueError, match='HostRSS: schedule must be window'):
        HostRSS(schedule=lambda: True)


@each_callback
def test_a_run_name_that_climbs_and_a_folder_that_can_not_be_written_are_refused_at_init(make: type) -> None:
    with pytest.raises(ValueError, match='run_name='):
        make_trainer(make(), run_name='../climbing')
    Path('taken').write_text('')
    with pytest.raises(ValueError, match="folder='taken/x': nothing can be written"):
        make_trainer(make(folder='taken/x'))


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


# -- who may record at once ---------------------------------------------------------------------------------------


def test_windows_that_would_clash_are_refused_naming_the_two() -> None:
    with pytest.raises(ValueError, match='MemorySnapshot and TorchProfiler would both record batch 2'):
        make_trainer(MemorySnapshot(), TorchProfiler(schedule={'skip': '2ba', 'active': '1ba'}))


@pytest.mark.parametrize('order', [(MemorySnapshot, TorchProfiler), (TorchProfiler, MemorySnapshot)])
def test_equal_windows_share_one_session_in_either_order(order: tuple[type, type]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        train(*[make(schedule=SOON) for make in order])
    assert not [warning for warning in caught if 'postpones' in str(warning.message)]
    assert {entry.batch for entry in entries(Path('test-run'))} == {3}, 'both record the same window'
    kinds = {entry.kind: entry.status for entry in entries(Path('test-run'))}
    assert kinds['memory_snapshot'] == kinds['torch_profiler'] == 'saved'


def test_of_windows_that_clash_unforeseen_the_later_steps_aside_with_one_warning() -> None:
    first = TorchProfiler(schedule={'active': '40sp', 'every': '80sp'})
    second = TorchProfiler(schedule={'skip': '2ba', 'active': '1ba', 'every': '5ba'}, folder='other')
    with pytest.warns(MemprofWarning, match='skips a window at batch 2: TorchProfiler is recording') as caught:
        train(first, second, batches=20)
    assert sum('skips a window' in str(warning.message) for warning in caught) == 1
    assert len(entries(Path('test-run'), 'torch_profiler')) == 2
    assert len(entries(Path('other'), 'torch_profiler')) >= 1


@pytest.mark.parametrize('warmup', ['0ba', '1ba'])
def test_a_single_window_that_clashes_unforeseen_comes_as_soon_as_it_can(warmup: str) -> None:
    first = TorchProfiler(schedule={'active': '40sp'})
    second = TorchProfiler(
        schedule={'skip': '1ba', 'warmup': warmup, 'active': '2ba'}, folder='other', remote_file_name=None
    )
    with pytest.warns(MemprofWarning, match='postpones its window at batch 1: TorchProfiler is recording'):
        train(first, second, batches=12)
    (entry,) = entries(Path('other'), 'torch_profiler')
    assert entry.status == 'saved' and entry.batch < 12


def test_a_torch_profiler_of_the_user_is_not_disturbed_and_named_as_the_reason() -> None:
    with pytest.warns(MemprofWarning) as caught, torch.profiler.profile() as theirs:
        train(TorchProfiler(schedule=SOON), batches=5)
    assert len(theirs.events()) > 0
    (skipped,) = entries(Path('test-run'), 'torch_profiler')
    assert (skipped.status, skipped.reason) == ('skipped', 'another torch profiler is recording')
    what_to_do = 'another torch profiler is recording. Stop it before the window of TorchProfiler'
    begun, ended = [str(warning.message) for warning in caught if 'TorchProfiler' in str(warning.message)]
    assert 'postpones its window at batch 1' in begun and what_to_do in begun
    assert 'the run ended at batch 5 while' in ended and what_to_do in ended


def test_a_training_that_broke_off_in_a_window_does_not_keep_the_next_from_recording() -> None:
    class Break(Callback):
        def batch_end(self, state: Any, logger: Any) -> None:
            raise RuntimeError('out of memory, say')

    broken = make_trainer(TorchProfiler(schedule={'active': '5ba'}), Break(), run_name='broken')
    with pytest.raises(RuntimeError, match='out of memory'):
        broken.fit()
    train(TorchProfiler(schedule=SOON))
    assert len(entries(Path('test-run'), 'torch_profiler')) == 1
    broken.close()
    assert len(entries(Path('broken'), 'torch_profiler')) == 1, 'what the first had is saved'


def test_a_finished_window_is_not_held_in_memory() -> None:
    callbacks = MemorySnapshot(schedule=SOON), TorchProfiler(schedule=SOON)
    trainer = make_trainer(*callbacks)
    trainer.fit()
    assert callbacks[0].kineto is callbacks[1].kineto
    assert callbacks[0].kineto is not None
    assert not callbacks[0].kineto._unread
    assert callbacks[0].kineto.result is None
    trainer.close()


def test_a_run_too_short_for_its_first_window_is_told_before_the_first_batch() -> None:
    class Heard(Callback):
        def batch_start(self, state: Any, logger: Any) -> None:
            assert any('comes after 50 batches, and this run has 12' in str(warning.message) for warning in caught)

    with pytest.warns(MemprofWarning) as caught:
        train(TorchProfiler(schedule={'skip': '50ba', 'active': '1ba'}), Heard())
    assert len([warning for warning in caught if warning.category is MemprofWarning]) == 1


def test_stages_eval_without_an_evaluation_is_one_warning_before_the_first_batch() -> None:
    class Heard(Callback):
        def batch_start(self, state: Any, logger: Any) -> None:
            assert any('there is no eval_dataloader' in str(warning.message) for warning in caught)

    with pytest.warns(MemprofWarning) as caught:
        train(HostRSS(stages=['eval']), Heard(), batches=2)
    assert len([warning for warning in caught if warning.category is MemprofWarning]) == 1


def test_an_error_says_which_callback_it_is_of() -> None:
    with pytest.raises(ValueError, match=r'^HostRSS: interval must be 0\.001'):
        HostRSS(interval=0)
    with pytest.raises(ValueError, match=r'^HostRSS: ranks=\[7\] are beyond this run'):
        make_trainer(HostRSS(ranks=[7]))


def test_a_callback_that_fails_is_logged_with_its_traceback_at_debug(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError('a bug of ours')

    monkeypatch.setattr(HostRSS, '_stop', fail)
    with caplog.at_level('DEBUG', logger='composer_memprof'), pytest.warns(MemprofWarning, match='is disabled'):
        train(HostRSS())
    (record,) = [record for record in caplog.records if record.exc_info and 'HostRSS failed' in record.message]
    assert 'a bug of ours' in str(record.exc_info[1])  # type: ignore[index]


def test_warnings_that_are_made_errors_do_not_reach_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError('a bug of ours')

    monkeypatch.setattr(TorchProfiler, '_stop', fail)
    with warnings.catch_warnings():
        warnings.simplefilter('error', MemprofWarning)
        trainer = train(TorchProfiler(schedule=SOON))
    assert trainer.state.timestamp.batch.value == 12
    assert not torch.autograd._profiler_enabled()


def test_beside_composers_own_profiler_both_get_their_traces() -> None:
    profiler = Profiler(
        schedule=cyclic_schedule(skip_first=0, wait=4, warmup=1, active=2, repeat=2),
        trace_handlers=[JSONTraceHandler(folder='composers', merged_trace_filename=None)],
        sys_prof_cpu=False,
        torch_prof_folder='composers-torch',
    )
    ours = TorchProfiler(schedule={'skip': '1ba', 'active': '2ba', 'every': '7ba'})
    with pytest.warns(MemprofWarning, match='To let TorchProfiler follow the Profiler') as caught:
        train(ours, HostRSS(), batches=14, profiler=profiler)
    assert sum('does not record the batches' in str(warning.message) for warning in caught) == 1
    assert len(list(Path('composers-torch').glob('*.json'))) == 2
    assert len(entries(Path('test-run'), 'torch_profiler')) == 2


def test_a_window_yields_to_composers_profiler_in_time() -> None:
    profiler = Profiler(
        schedule=cyclic_schedule(skip_first=0, wait=4, warmup=1, active=2, repeat=1),
        trace_handlers=[],
        sys_prof_cpu=False,
        torch_prof_folder='composers-torch',
    )
    ours = TorchProfiler(schedule={'active': '20ba'})
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        train(ours, batches=12, profiler=profiler)
    (trace,) = entries(Path('test-run'), 'torch_profiler')
    assert trace.batch == 4
    assert len(list(Path('composers-torch').glob('*.json'))) == 1
