"""StepTimes: the time of each phase of each batch."""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from composer.core import Callback
from composer.loggers import InMemoryLogger

from composer_memprof import StepTimes
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.step_times.recorder import StepTimesRecorder
from composer_memprof.recorders.step_times.summary import PARTS, StepTimesTally
from composer_memprof.recorders.step_times.timers import HostTimer
from composer_memprof.recorders.torch_private import data_loading
from composer_memprof.vocabulary import BACKWARD, DATALOADER, EVAL, FORWARD, OPTIMIZER
from tests.conftest import Noise, Regression, entries, json_lines, loader, train
from tests.support.processes.ranks import run_on_ranks

FOLDER = Path('test-run/memprof')


class MadeUpTimer:
    """Seconds that a test sets; ``known`` is how far a device has come."""

    name = 'made up'

    def __init__(self) -> None:
        self.now = 0.0
        self.known = math.inf

    def mark(self) -> float:
        return self.now

    def is_known(self, mark: float) -> bool:
        return mark <= self.known

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


def run_batch(recorder: StepTimesRecorder, clock: MadeUpTimer, batch: int) -> None:
    """One second for data, two microbatches of 2 and 3 seconds, 4 for the optimizer, 5 for an evaluation, 1 for the rest."""
    recorder.mark(DATALOADER)
    clock.now += 1
    recorder.begin_batch(batch, samples=8, tokens=80)
    for _ in range(2):
        recorder.mark(FORWARD)
        clock.now += 2
        recorder.mark(BACKWARD)
        clock.now += 3
    recorder.mark(OPTIMIZER)
    clock.now += 4
    recorder.end_batch()
    clock.now += 1
    recorder.mark(EVAL)
    clock.now += 5


def test_each_phase_of_a_batch_has_its_time_and_they_add_up_to_the_total() -> None:
    clock = MadeUpTimer()
    recorder = StepTimesRecorder(clock)
    for batch in range(2):
        run_batch(recorder, clock, batch)
    recorder.close_batch(now=True)
    (_, first), (_, second) = recorder.take_known()
    assert (first.dataloader, first.forward, first.backward) == (1, [2, 2], [3, 3])
    assert (first.optimizer, first.eval, first.rest, first.total) == (4, 5, 1, 21)
    assert (second.batch, second.total, second.samples, second.tokens) == (1, 21, 8, 80)
    assert sum(first.columns()[name] for name in PARTS) == first.total


def test_a_batch_comes_once_the_device_has_passed_its_end_and_nothing_waits_for_it() -> None:
    clock = MadeUpTimer()
    clock.known = 21
    recorder = StepTimesRecorder(clock)
    for batch in range(3):
        run_batch(recorder, clock, batch)
    assert [times.batch for _, times in recorder.take_known()] == [0]
    recorder.close_batch(now=True)
    assert recorder.take_known() == [] and recorder.is_waiting_for(None)
    clock.known = math.inf
    assert [times.batch for _, times in recorder.take_known()] == [1, 2]
    assert not recorder.is_waiting_for(None)


def test_the_summary_names_the_slowest_batches_and_what_made_them_slow() -> None:
    clock, tally = MadeUpTimer(), StepTimesTally()
    recorder = StepTimesRecorder(clock)
    for batch in range(1000):
        run_batch(recorder, clock, batch)
        clock.now += 100 * (batch == 700)  # an evaluation that took long
    recorder.close_batch(now=True)
    for _, times in recorder.take_known():
        tally.add(times)
    summary = tally.summary(clock.name)
    assert (summary.batches, summary.clock) == (1000, 'made up')
    assert summary.seconds['total'] == {'mean': 21.1, 'p50': 21, 'p90': 21, 'p99': 21, 'max': 121}
    assert summary.slowest[0].batch == 700 and len(summary.slowest) == 10
    assert (summary.slowest[0].phase, summary.slowest[0].phase_seconds, summary.slowest[0].phase_median) == (
        EVAL,
        105,
        5,
    )
    assert sum(summary.share.values()) == pytest.approx(1)
    assert summary.tokens_per_second == pytest.approx(80_000 / 21_100)
    assert tally.recent_percentiles()['total_p99'] == 21, 'the newest batches alone'


def test_percentiles_are_of_the_newest_batches_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('composer_memprof.recorders.step_times.summary._KEPT', 1024)
    clock, tally = MadeUpTimer(), StepTimesTally()
    recorder = StepTimesRecorder(clock)
    for batch in range(3000):
        run_batch(recorder, clock, batch)
        clock.now += batch < 1000
        for _, times in recorder.take_known():
            tally.add(times)
    assert tally.summary('').seconds['total']['max'] == 21
    assert tally.summary('').seconds['total']['mean'] > 21
    assert len(tally._newest) == 1024


def test_logged_percentiles_are_numpys() -> None:
    clock, tally, totals = MadeUpTimer(), StepTimesTally(), []
    recorder = StepTimesRecorder(clock)
    for batch in range(37):
        run_batch(recorder, clock, batch)
        clock.now += (batch * 7919) % 101
    recorder.close_batch(now=True)
    for _, times in recorder.take_known():
        tally.add(times)
        totals.append(times.total)
    found = tally.recent_percentiles()
    assert [found[f'total_p{p}'] for p in (50, 90, 99)] == pytest.approx(list(np.percentile(totals, (50, 90, 99))))


class SlowLoader(Noise):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.003)
        return super().__getitem__(index)


class SlowModel(Regression):
    def forward(self, batch: Any) -> torch.Tensor:
        time.sleep(0.03)
        return super().forward(batch)


def test_a_run_leaves_a_line_a_batch_and_a_summary_that_tells_what_was_slow() -> None:
    logger = InMemoryLogger()
    data = torch.utils.data.DataLoader(SlowLoader(32), batch_size=8)
    train(
        StepTimes(log_every_n_batches=2),
        model=SlowModel(),
        train_dataloader=data,
        eval_dataloader=loader(2),
        eval_interval='4ba',
        device_train_microbatch_size=4,
        loggers=[logger],
    )
    saved = {entry.kind: entry for entry in entries(Path('test-run'))}
    assert {kind: entry.status for kind, entry in saved.items()} == {
        'step_times': 'saved',
        'step_times.summary': 'saved',
    }
    lines = json_lines(FOLDER / saved['step_times'].path)
    assert [line['batch'] for line in lines] == [0, 1, 2, 3]
    for line in lines:
        assert len(line['forward']) == len(line['backward']) == 2, 'one for each microbatch'
        assert min(line['forward']) > 0.03 and line['optimizer'] > 0
        assert line['dataloader'] >= line['data'] > 0.02
        parts = [sum(line[name]) if isinstance(line[name], list) else line[name] for name in PARTS]
        assert sum(parts) == pytest.approx(line['total'], abs=1e-6)
        assert (line['samples'], line['tokens'], line['clock']) == (8, None, 'host')
    assert lines[3]['eval'] > 0.06 and lines[0]['eval'] == 0, 'the evaluation came after the last batch'
    summary = json.loads((FOLDER / saved['step_times.summary'].path).read_text())
    assert (summary['rank'], summary['stage'], summary['batches'], summary['version']) == (0, 'train', 4, 1)
    assert summary['share']['forward'] > summary['share']['dataloader'] > summary['share']['optimizer']
    logged = logger.data
    assert 0 < logged['step_times/waiting_share'][-1][1] < 1
    assert len(logged['step_times/forward']) == 4 and 'step_times/total_p90' in logged


def test_the_first_batchs_data_and_a_window_in_the_middle_are_timed() -> None:
    train(StepTimes(schedule={'skip': '2ba', 'active': '3ba'}), train_dataloader=loader(8))
    (entry,) = entries(Path('test-run'), 'step_times')
    lines = json_lines(FOLDER / entry.path)
    assert [line['batch'] for line in lines] == [2, 3, 4]
    assert all(line['dataloader'] > 0 for line in lines)


def test_an_evaluations_batches_are_timed_by_their_stage() -> None:
    train(
        StepTimes(stages=['eval']),
        train_dataloader=loader(4),
        eval_dataloader=torch.utils.data.DataLoader(SlowLoader(16), batch_size=8),
        eval_interval='4ba',
        batches=4,
    )
    (entry,) = entries(Path('test-run'), 'step_times')
    lines = json_lines(FOLDER / entry.path)
    assert [line['batch'] for line in lines] == [0, 1]
    assert all(line['dataloader'] > 0.02 and len(line['forward']) == 1 and line['backward'] == [] for line in lines)


def test_what_was_timed_survives_an_error_in_training() -> None:
    class Break(Callback):
        def batch_end(self, state: Any, logger: Any) -> None:
            if state.timestamp.batch.value == 3:
                raise RuntimeError('out of memory, say')

    from tests.conftest import make_trainer

    trainer = make_trainer(StepTimes(), Break())
    with pytest.raises(RuntimeError, match='out of memory'):
        trainer.fit()
    trainer.close()
    (entry,) = entries(Path('test-run'), 'step_times')
    assert [line['batch'] for line in json_lines(FOLDER / entry.path)][:2] == [0, 1]


class SlowEvaluation(Regression):
    def eval_forward(self, batch: Any, outputs: Any = None) -> torch.Tensor:
        time.sleep(0.02)
        return super().eval_forward(batch)


def times_of(*names: str) -> list[tuple[Any, ...]]:
    (entry,) = entries(Path('test-run'), 'step_times')
    return [tuple(line[name] for name in names) for line in json_lines(FOLDER / entry.path)]


def test_evaluations_at_the_end_of_epochs_belong_to_the_last_batch_before_them() -> None:
    train(
        StepTimes(),
        model=SlowEvaluation(),
        train_dataloader=loader(3),
        eval_dataloader=loader(3),
        eval_interval='1ep',
        max_duration='2ep',
    )
    evals = [seconds for (seconds,) in times_of('eval')]
    assert [seconds > 0.06 for seconds in evals] == [False, False, True, False, False, True]


def test_what_comes_after_the_last_batch_of_a_window_belongs_to_it() -> None:
    train(
        StepTimes(schedule={'skip': '1ba', 'active': '1ba'}),
        model=SlowEvaluation(),
        train_dataloader=loader(4),
        eval_dataloader=loader(3),
        eval_interval='2ba',
    )
    ((batch, seconds),) = times_of('batch', 'eval')
    assert batch == 1 and seconds > 0.06


def test_all_batches_of_an_evaluation_inside_of_a_training_window_are_its_evaluation() -> None:
    train(
        StepTimes(stages=['train', 'eval']),
        model=SlowEvaluation(),
        train_dataloader=loader(4),
        eval_dataloader=loader(3),
        eval_interval='2ba',
    )
    evals = [seconds for (seconds,) in times_of('eval')]
    assert [seconds > 0.06 for seconds in evals] == [False, True, False, True]


def test_an_evaluations_window_that_begins_late_has_the_wait_for_its_own_data() -> None:
    train(
        StepTimes(stages=['eval'], schedule={'skip': '2ba', 'active': '1ba', 'every': '1ba'}),
        model=SlowEvaluation(),
        train_dataloader=loader(2),
        eval_dataloader=loader(5),
        eval_interval='2ba',
    )
    lines = [line for entry in entries(Path('test-run'), 'step_times') for line in json_lines(FOLDER / entry.path)]
    assert sorted(line['batch'] for line in lines) == [2, 3, 4]
    assert all(0 < line['dataloader'] < 0.02 for line in lines)


def test_an_attempt_that_ran_out_of_memory_is_no_microbatch() -> None:
    clock = MadeUpTimer()
    recorder = StepTimesRecorder(clock)
    recorder.mark(DATALOADER)
    recorder.begin_batch(0)
    for _ in range(2):
        recorder.retry_batch()
        recorder.mark(FORWARD)
        clock.now += 2
    recorder.end_batch()
    recorder.close_batch(now=True)
    ((_, times),) = recorder.take_known()
    assert (times.forward, times.rest, times.total) == ([2], 2, 4)


def test_each_batch_is_logged_at_its_own_step() -> None:
    logger = InMemoryLogger()
    train(StepTimes(), loggers=[logger], batches=4)
    assert len(logger.data['step_times/total']) == 4


class FailingTimer(HostTimer):
    """A device that fails for good after some marks."""

    marks = 0

    def mark(self) -> float:
        FailingTimer.marks += 1
        if FailingTimer.marks > 30:
            raise RuntimeError('CUDA error: an illegal memory access')
        return super().mark()


def test_a_device_that_fails_costs_the_rest_of_the_record_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    FailingTimer.marks = 0
    monkeypatch.setattr('composer_memprof.callbacks.step_times.HostTimer', FailingTimer)
    with pytest.warns(MemprofWarning, match='StepTimes is disabled .*an illegal memory access'):
        trainer = train(StepTimes())
    assert trainer.state.timestamp.batch.value == 12
    saved = {entry.kind: entry for entry in entries(Path('test-run'))}
    assert {kind: entry.status for kind, entry in saved.items()} == {
        'step_times': 'saved',
        'step_times.summary': 'saved',
    }
    assert [line['batch'] for line in json_lines(FOLDER / saved['step_times'].path)][:2] == [0, 1]
    assert not [thread for thread in threading.enumerate() if thread.name == 'memprof-step-times']


def test_torchs_data_loader_is_as_it_was_after_the_close() -> None:
    before = torch.utils.data.dataloader._BaseDataLoaderIter.__next__
    train(StepTimes(), batches=2)
    assert torch.utils.data.dataloader._BaseDataLoaderIter.__next__ is before
    assert data_loading._listeners == []


@pytest.mark.parametrize('value', [0, 2.5, True, 'x'])
def test_what_is_not_allowed_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match='log_every_n_batches must be a whole number from 1, not '):
        StepTimes(log_every_n_batches=value)


def test_the_recorder_works_without_a_trainer() -> None:
    recorder = StepTimesRecorder(HostTimer())
    recorder.begin_batch(0)
    recorder.mark(FORWARD)
    recorder.end_batch()
    recorder.close_batch(now=True)
    ((_, times),) = recorder.take_known()
    assert times.dataloader is None and times.total >= sum(times.forward) > 0


ONE_SLOW_RANK = """
import time, torch
from composer.utils import dist
from composer_memprof import StepTimes
from tests.conftest import Noise, make_trainer

class SlowOnRankOne(Noise):
    def __getitem__(self, index):
        time.sleep(0.01 * dist.get_global_rank())
        return super().__getitem__(index)

dist.initialize_dist('cpu', timeout=60)
data = SlowOnRankOne(96)
loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=dist.get_sampler(data))
trainer = make_trainer(StepTimes(), train_dataloader=loader)
trainer.fit()
trainer.close()
"""


@pytest.mark.dist
def test_of_two_ranks_that_wait_for_one_another_the_slow_one_is_known_by_its_own_data(tmp_path: Path) -> None:
    script = tmp_path / 'train.py'
    script.write_text(ONE_SLOW_RANK)
    run_on_ranks(script)
    medians = [
        {phase: times['p50'] for phase, times in json.loads(path.read_text())['seconds'].items()}
        for path in sorted(tmp_path.rglob('*.step_times.summary.json'))
    ]
    assert len(medians) == 2
    assert medians[1]['data'] > 0.07 > medians[0]['data'], 'only rank 1 has a slow DataLoader'
    assert min(median['dataloader'] for median in medians) > 0.05, 'and both wait for it'
