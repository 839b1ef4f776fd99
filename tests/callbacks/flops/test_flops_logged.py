"""Flops in a Trainer: what is logged and written, and which batches are counted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from composer.core import Callback, State
from composer.loggers import Logger

from composer_memprof import Flops
from composer_memprof.callbacks.flops.device_peak import find_peak
from composer_memprof.recorders.flops.matmul_peak import matmul_peak
from tests.conftest import Regression, entries, loader, make_trainer, train
from tests.support.callbacks.flops import (
    LAYER_1,
    LAYER_2,
    REGRESSION,
    Logged,
    gpt,
    gpt_flops,
    only,
    texts,
    train_gpt,
    written,
)


def test_rates_are_logged_every_five_batches_and_constants_once() -> None:
    logged = Logged()
    train_gpt(Flops(peak_flops=1e12), batches=12, loggers=[logged])
    flops = 3 * gpt_flops()['forward']
    assert logged.of('flops/batch_flops') == {1: flops}
    assert logged.of('flops/batch_flops_all_ranks_estimate') == {1: flops}
    assert logged.of('flops/total_flops') == logged.of('flops/peak_flops_per_sec') == {1: 1e12}
    for name in ('mfu', 'actual_batches_per_sec', 'max_batches_per_sec', 'mfu_from_formula'):
        assert set(logged.of(f'flops/{name}')) == {2, 5, 10}, name
    for name in ('batch_flops_from_formula', 'tracked_operations', 'untracked_operations'):
        assert set(logged.of(f'flops/{name}')) == {1}, name
    rate = logged.of('flops/actual_batches_per_sec')[10]
    assert logged.of('flops/mfu')[10] == pytest.approx(flops * rate / 1e12)
    assert logged.of('flops/max_batches_per_sec')[10] == pytest.approx(1e12 / flops)


def test_the_interval_of_logging_can_be_set() -> None:
    logged = Logged()
    train(Flops(log_every_n_batches=4), batches=9, loggers=[logged])
    assert set(logged.of('flops/mfu')) == {2, 4, 8}


def test_a_window_writes_json_and_a_table() -> None:
    train(Flops(peak_flops=5e11, schedule={'skip': '2ba', 'active': '4ba'}), batches=8)
    data = only('rank0.6.flops.json')
    assert (data['rank'], data['epoch'], data['batch'], data['stage'], data['world_size']) == (0, 0, 6, 'train', 1)
    batches = data['batches']
    assert (batches['all'], batches['traced'], batches['timed']) == (4, 1, 3)
    assert data['batch_flops'] == REGRESSION
    assert data['device']['peak_source'] == 'peak_flops, as given'
    assert data['mfu'] == pytest.approx(REGRESSION * data['actual_batches_per_sec'] / 5e11)
    assert data['seconds'] == pytest.approx(3 / data['actual_batches_per_sec'])
    text = Path('test-run/memprof/rank0.6.flops.txt').read_text()
    for words in ('aten.addmm', 'net.2', 'MFU', 'aten.relu'):
        assert words in text
    assert {entry.kind for entry in entries(Path('test-run'))} == {'flops', 'flops.table'}


def test_a_later_window_uses_the_trace_of_an_earlier_one() -> None:
    logged = Logged()
    train(Flops(schedule={'active': '1ba', 'every': '3ba'}), batches=9, loggers=[logged])
    traced = {data['batch']: data['batches']['traced'] for data in written()}
    assert traced == {1: 1, 4: 0, 7: 0}
    assert all(data['batch_flops'] == REGRESSION for data in written())
    assert set(logged.of('flops/mfu')) == {4, 7}


def test_each_shape_is_traced_once() -> None:
    logged = Logged()
    data = texts([24, 24, 12, 24, 12, 12])
    train(Flops(log_every_n_batches=1), model=gpt(), train_dataloader=data, loggers=[logged])
    long, short = (3 * gpt_flops(length=length)['forward'] for length in (24, 12))
    assert logged.of('flops/batch_flops') == {1: long, 3: short, 4: long, 5: short}, 'when it has changed'
    found = only()
    assert (found['batches']['traced'], found['batches']['timed']) == (2, 4)
    shapes = found['batches']['shapes']
    assert [(row['batches'], row['batch_flops'], row['traced_at']) for row in shapes] == [(3, long, 1), (3, short, 3)]
    assert found['mfu'] == pytest.approx((2 * long + 2 * short) / found['seconds'] / found['device']['peak_flops'])


def test_the_next_window_counts_again_after_layers_were_frozen() -> None:
    class Freeze(Callback):
        def batch_end(self, state: State, logger: Logger) -> None:
            if state.timestamp.batch.value == 2:
                state.model.net[0].requires_grad_(False)

    train(Flops(schedule={'active': '2ba', 'every': '3ba'}), Freeze(), batches=5)
    first, second = written()
    assert first['batch_flops'] == REGRESSION
    assert second['batch_flops'] == LAYER_1 + 2 * LAYER_2  # only the last layer's weight


def test_evaluation_and_prediction_are_counted_too() -> None:
    logged = Logged()
    trainer = make_trainer(
        Flops(stages=['train', 'eval', 'predict']), batches=6, eval_dataloader=loader(3), eval_interval='3ba',
        loggers=[logged],
    )  # fmt: skip
    trainer.fit()
    trainer.predict(loader(2))
    trainer.close()
    found = [(data['stage'], data['batch_flops'], data['batches']['traced']) for data in written()]
    forward = LAYER_1 + LAYER_2
    assert found.count(('train', REGRESSION, 1)) == 1
    assert found.count(('train', REGRESSION, 0)) == 1
    assert found.count(('eval', forward, 1)) == found.count(('eval', forward, 0)) == 1
    assert found.count(('predict', forward, 1)) == 1
    assert logged.of('flops/batch_flops')[1] == REGRESSION
    assert logged.of('flops/eval/batch_flops')[3] == logged.of('flops/predict/batch_flops')[6] == forward


def test_the_metrics_of_an_evaluation_without_training_have_no_prefix() -> None:
    logged = Logged()
    train(Flops(stages='eval'), batches=2, eval_dataloader=loader(3), eval_interval='1ep', loggers=[logged])
    assert set(logged.of('flops/batch_flops').values()) == {LAYER_1 + LAYER_2}
    assert logged.of('flops/mfu')


def test_the_time_of_an_evaluation_does_not_count_as_training() -> None:
    class Clock(Callback):
        """Its evaluation takes a day."""

        def __init__(self, flops: Flops) -> None:
            self.flops = flops

        def eval_batch_start(self, state: State, logger: Logger) -> None:
            if self.flops._stopwatch._since is not None:
                self.flops._stopwatch._since -= 86400

    flops = Flops()
    train(flops, Clock(flops), batches=6, eval_dataloader=loader(1), eval_interval='2ba')
    assert only()['seconds'] < 86400


def test_on_a_cpu_the_peak_is_measured_in_the_models_dtype_and_the_report_says_so() -> None:
    train(Flops(), batches=3)
    device = only()['device']
    assert device['peak_source'].startswith('measured') and 'float32' in device['peak_source']
    assert device['peak_flops'] > 0
    before = torch.get_rng_state()
    assert matmul_peak(torch.float64) > 0
    assert torch.equal(torch.get_rng_state(), before)
    halves = SimpleNamespace(device=SimpleNamespace(name='cpu'), precision=None, model=Regression().to(torch.bfloat16))
    assert 'bfloat16' in find_peak(halves, None).source  # type: ignore[arg-type]
