"""Windows of the callbacks: stages, ranks, ends, and who may record at once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from composer.core import Callback
from composer.profiler import JSONTraceHandler, Profiler, cyclic_schedule

from composer_memprof import HostRSS, MemorySnapshot, TorchProfiler
from composer_memprof.messages import MemprofWarning
from composer_memprof.schedule import on_ranks, window
from tests.conftest import entries, loader, make_trainer, train
from tests.support.callbacks.every_callback import SOON, each_callback

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
