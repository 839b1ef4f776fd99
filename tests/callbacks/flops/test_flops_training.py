"""Flops: training is not changed, and a wrong parameter is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import pytest
from composer.core import Callback, State
from composer.loggers import Logger
from torch import Tensor

from composer_memprof import Flops, FSDPMemTracker, SavedTensorsHook
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.flops.recorder import FlopsRecorder
from tests.conftest import Regression, entries, make_trainer, train
from tests.support.callbacks.flops import REGRESSION, Logged, gpt_flops, only, train_gpt, written


def losses(*callbacks: Any, **more: Any) -> list[float]:
    logged = Logged()
    train_gpt(*callbacks, batches=5, loggers=[logged], **more)
    return list(logged.of('loss/train/total').values())


def test_losses_are_bit_identical() -> None:
    bare = losses()
    assert len(bare) == 5
    assert losses(Flops()) == bare
    assert losses(Flops(schedule={'active': '1ba', 'every': '2ba'}), device_train_microbatch_size=2) == losses(
        device_train_microbatch_size=2
    )


def test_all_recorders_can_record_the_same_batch() -> None:
    together = {'skip': '1ba', 'active': '1ba'}
    for order in (1, -1):
        callbacks = [Flops(schedule=together), FSDPMemTracker(schedule=together), SavedTensorsHook(schedule=together)]
        folder = f'order{order}'
        for callback in callbacks:
            callback.output = type(callback.output)(**{**vars(callback.output), 'folder': folder})
        assert losses(*callbacks[::order]) == losses()
        (found,) = written(folder=Path(folder))
        assert found['batch_flops'] == 3 * gpt_flops()['forward']
        kinds = {entry.kind for entry in entries(Path(folder))}
        assert {'flops', 'fsdp_mem_tracker', 'saved_tensors_hook'} <= kinds


def test_two_of_them_count_the_same() -> None:
    train(Flops(), Flops(), batches=3)
    first, second = written()
    assert first['batch_flops'] == second['batch_flops'] == REGRESSION


def test_an_exception_in_the_traced_batch_passes_through_and_no_hooks_are_left() -> None:
    class Failing(Regression):
        def loss(self, outputs: Any, batch: Any) -> Tensor:
            raise ZeroDivisionError('of the user')

    trainer = make_trainer(Flops(), model=Failing(), batches=3)
    with pytest.raises(ZeroDivisionError, match='of the user'):
        trainer.fit()
    trainer.close()
    assert only()['batch_flops'] is None


def test_a_bug_of_ours_does_not_reach_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError('a bug of ours')

    monkeypatch.setattr(FlopsRecorder, '_phase', fail)
    with pytest.warns(MemprofWarning, match='is disabled.*a bug of ours'):
        trainer = train(Flops(), batches=4)
    assert trainer.state.timestamp.batch.value == 4


def test_a_batch_that_runs_again_counts_once() -> None:
    class Shrink(Callback):
        """Runs out of memory once, so that automatic microbatching tries the batch again in smaller parts."""

        tried = False

        def after_forward(self, state: State, logger: Logger) -> None:
            if not self.tried:
                self.tried = True
                state.auto_microbatching = True
                raise RuntimeError('CUDA out of memory')

        def batch_end(self, state: State, logger: Logger) -> None:
            state.auto_microbatching = False

    train(Flops(), Shrink(), batches=2)
    data = only()
    assert data['batch_flops'] == REGRESSION
    assert {row['name']: row['calls'] for row in data['modules']}[''] == 2


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        ({'peak_flops': 0}, 'peak_flops must be FLOPs per second above 0, as 312e12, not 0'),
        ({'peak_flops': '312e12'}, "peak_flops must be FLOPs per second above 0, as 312e12, not '312e12'"),
        ({'peak_flops': float('nan')}, 'peak_flops must be FLOPs per second above 0, as 312e12, not nan'),
        ({'peak_flops': True}, 'peak_flops must be FLOPs per second above 0, as 312e12, not True'),
        ({'log_every_n_batches': 0}, 'log_every_n_batches must be a whole number from 1, not 0'),
        ({'log_every_n_batches': 2.5}, 'log_every_n_batches must be a whole number from 1, not 2.5'),
        ({'stages': ['tran']}, "'tran'"),
        ({'folder': '{batches}'}, '{batches}'),
        ({'schedule': {'activ': '1ba'}}, 'activ'),
    ],
)
def test_a_wrong_parameter_is_refused_at_construction(arguments: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        Flops(**arguments)
    assert words in str(caught.value)
    assert '\n' not in str(caught.value)


def test_one_callback_serves_several_trainers() -> None:
    flops: Optional[Flops] = Flops()
    for name in ('one', 'two'):
        train(flops, batches=3, run_name=name)
        (data,) = written(folder=Path(name) / 'memprof')
        assert data['batches']['traced'] == 1
