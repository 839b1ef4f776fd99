"""The callbacks in a loop without Composer's Trainer: the same files, the same peaks, and no number changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest
import torch

import composer_memprof
from composer_memprof import HostRSS, MemorySnapshot, SavedTensorsHook, StepTimes, profile
from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.artifacts.reading.attempts import read_attempts
from composer_memprof.messages import MemprofWarning
from tests.conftest import Regression, entries, json_lines, loader, train

SCHEDULE = {'skip': '5ba', 'active': '2ba'}
RUN = Path('test-run')


def snapshot_callback() -> MemorySnapshot:
    return MemorySnapshot(schedule=SCHEDULE, folder='{run_name}/memprof')


def peak_by_category() -> dict[str, int]:
    (entry,) = entries(RUN, 'memory_snapshot')
    (device,) = report_on(load_snapshot(RUN / 'memprof' / entry.path)).devices
    return {share.category: share.bytes for share in device.peak.categories}


def loop(run: Optional[Any] = None, *, batches: int = 12, marks: bool = False, **made: Any) -> list[float]:
    """The training of :func:`tests.conftest.train` by hand. Returns its losses."""
    model, optimizer = made['model'], made['optimizer']
    losses = []
    for batch in loader(batches):
        if run is not None and marks:
            with run.phase('forward'):
                loss = model.loss(model(batch), batch)
            with run.phase('backward'):
                loss.backward()
            with run.phase('optimizer'):
                optimizer.step()
        else:
            loss = model.loss(model(batch), batch)
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if run is not None:
            run.step(samples=len(batch[0]))
    return losses


def make() -> dict[str, Any]:
    torch.manual_seed(7)
    model = Regression()
    return {'model': model, 'optimizer': torch.optim.AdamW(model.parameters(), lr=1e-2)}


def test_a_loop_has_the_files_and_the_peaks_of_the_same_training_with_a_trainer() -> None:
    train(snapshot_callback(), StepTimes(), HostRSS())
    with_trainer, kinds = peak_by_category(), {entry.kind for entry in entries(RUN)}
    RUN.rename('with-trainer')
    made = make()
    with profile(
        *(snapshot_callback(), StepTimes(), HostRSS()),
        run_name='test-run',
        model=made['model'],
        optimizers=[made['optimizer']],
    ) as run:
        loop(run, **made)
    assert {entry.kind for entry in entries(RUN)} == kinds
    found = peak_by_category()
    for category in ('parameter', 'gradient', 'optimizer_state'):
        assert found[category] == with_trainer[category], category
    assert sum(found.values()) == pytest.approx(sum(with_trainer.values()), rel=0.02)


@pytest.mark.parametrize('marks', [False, True])
def test_phases_come_from_the_model_or_from_the_loop(marks: bool) -> None:
    made = make()
    given = {} if marks else {'model': made['model'], 'optimizers': [made['optimizer']]}
    with profile(StepTimes(), run_name='test-run', **given) as run:
        loop(run, marks=marks, **made)
    (entry,) = entries(RUN, 'step_times')
    lines = json_lines(RUN / 'memprof' / entry.path)
    assert [line['batch'] for line in lines] == list(range(12))
    assert all(line['forward'] and line['backward'] and line['optimizer'] > 0 for line in lines)
    summary = next(each for each in entries(RUN) if each.kind == 'step_times.summary')
    assert json.loads((RUN / 'memprof' / summary.path).read_text())


def test_losses_are_bit_identical_with_and_without() -> None:
    bare = loop(**make())
    made = make()
    callbacks = (
        snapshot_callback(),
        SavedTensorsHook(schedule={'skip': '9ba', 'active': '1ba'}),
        StepTimes(),
        HostRSS(),
    )
    with profile(*callbacks, run_name='test-run', model=made['model'], optimizers=[made['optimizer']]) as run:
        assert loop(run, **made) == bare
    assert not made['model']._forward_hooks and not made['model']._forward_pre_hooks, 'nothing stays behind'


def test_schedules_count_samples_and_epochs_of_the_loop() -> None:
    made = make()
    callback = MemorySnapshot(schedule={'skip': '1ep', 'active': '1ba'})
    with profile(callback, run_name='test-run', model=made['model']) as run:
        for _ in range(2):
            loop(run, batches=3, **made)
            run.epoch()
    (entry,) = entries(RUN, 'memory_snapshot')
    assert (entry.epoch, entry.batch) == (1, 4)


def test_an_epoch_ends_where_a_loop_without_a_model_and_phases_says_so() -> None:
    callbacks = (
        StepTimes(schedule={'active': '1ep', 'every': '1ep', 'repeat': 2}),
        MemorySnapshot(schedule={'skip': '1ep', 'active': '1ba'}),
    )
    with profile(*callbacks, run_name='test-run') as run:
        for _ in range(2):
            for _ in range(3):
                run.step()
            run.epoch()
    files = sorted(
        (RUN / 'memprof' / entry.path for entry in entries(RUN, 'step_times')), key=lambda path: path.stat().st_mtime
    )
    recorded = [[(line['epoch'], line['batch']) for line in json_lines(path)] for path in files]
    assert recorded == [[(0, 0), (0, 1), (0, 2)], [(1, 3), (1, 4), (1, 5)]]
    (snapshot,) = entries(RUN, 'memory_snapshot')
    assert (snapshot.epoch, snapshot.batch) == (1, 4), 'taken at the end of batch 3'


def test_a_loop_that_fails_says_so_in_the_manifest_and_saves_the_open_window() -> None:
    made = make()
    with pytest.raises(ZeroDivisionError), profile(StepTimes(), run_name='test-run') as run:
        loop(run, batches=3, **made)
        1 / 0  # noqa: B018
    (attempt,) = read_attempts(RUN / 'memprof/rank0.manifest.jsonl')
    assert (attempt.end, attempt.batch) == ('failed', 3) and 'ZeroDivisionError' in (attempt.error or '')
    assert {entry.status for entry in entries(RUN)} == {'saved'}


def test_a_callback_that_fails_does_not_reach_the_loop() -> None:
    made = make()
    times = StepTimes()
    with profile(times, run_name='test-run') as run:
        loop(run, batches=2, **made)
        times._recorder = None  # type: ignore[assignment]
        with pytest.warns(MemprofWarning, match='StepTimes is disabled for the rest of this run'):
            loop(run, batches=2, **made)


@pytest.mark.parametrize(
    ('settings', 'said'),
    [
        ({'callbacks': lambda: [StepTimes(schedule={'skip': '1dur', 'active': '1ba'})]}, 'dur'),
        ({'callbacks': lambda: [StepTimes(ranks=[3])]}, 'ranks=.3. are beyond this run'),
    ],
)
def test_a_setting_that_does_not_fit_the_run_is_an_error_before_the_first_batch(
    settings: dict[str, Callable[[], list[Any]]], said: str
) -> None:
    with pytest.raises(ValueError, match=said), profile(*settings['callbacks'](), run_name='test-run'):
        raise AssertionError('a batch ran')


def test_an_unknown_phase_is_named_with_those_that_are_allowed() -> None:
    with (
        profile(StepTimes(), run_name='test-run') as run,
        pytest.raises(ValueError, match="phase='foreward' is unknown; allowed are dataloader, forward, backward"),
        run.phase('foreward'),
    ):
        pass


def test_it_is_exported_beside_the_callbacks() -> None:
    assert 'profile' in composer_memprof.__all__ and composer_memprof.profile is profile
