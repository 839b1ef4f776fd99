"""MemorySnapshot that stands by for a failure, beside others that record."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from composer.profiler import JSONTraceHandler, Profiler, cyclic_schedule

from composer_memprof import MemorySnapshot, TorchProfiler
from tests.conftest import entries, loader, make_trainer, train
from tests.support.recordings.memory_snapshots import RUN


def test_standing_by_gives_way_to_the_windows_of_others_and_leaves_nothing_when_all_goes_well() -> None:
    train(MemorySnapshot(on_oom=True, on_exception=True), TorchProfiler(schedule={'skip': '6ba', 'active': '2ba'}))
    assert {entry.path for entry in entries(RUN, 'memory_snapshot')} == {'rank0.4.memory_snapshot.pickle'}
    assert [entry.status for entry in entries(RUN, 'torch_profiler')] == ['saved']


@pytest.mark.parametrize('first', [TorchProfiler, MemorySnapshot])
def test_standing_by_beside_one_with_the_same_windows_costs_neither_its_files(first: type) -> None:
    same = {'skip': '2ba', 'warmup': '1ba', 'active': '2ba'}
    train(first(schedule=same), MemorySnapshot(schedule=same, on_exception=True))
    assert {entry.status for entry in entries(RUN, first.kind)} == {'saved'}
    assert 'saved' in {entry.status for entry in entries(RUN, 'memory_snapshot')}


def test_two_that_stand_by_are_refused() -> None:
    with pytest.raises(ValueError, match=r'on_oom=True.*another MemorySnapshot'):
        make_trainer(
            MemorySnapshot(on_exception=True), MemorySnapshot(on_oom=True, schedule={'skip': '5ba', 'active': '1ba'})
        )


def test_standing_by_is_for_fit_alone_and_over_with_it() -> None:
    trainer = make_trainer(MemorySnapshot(on_exception=True), eval_dataloader=loader(3))
    trainer.fit()
    trainer.eval()
    assert not torch.autograd._profiler_enabled()
    trainer.close()
    assert not torch.autograd._profiler_enabled()


@pytest.mark.parametrize('warmup', [0, 1])
def test_standing_by_keeps_out_of_what_composers_profiler_records(warmup: int) -> None:
    profiler = Profiler(
        trace_handlers=[JSONTraceHandler(folder='composers')],
        schedule=cyclic_schedule(wait=2, warmup=warmup, active=2, repeat=1),
        torch_prof_folder='composers_torch',
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        train(MemorySnapshot(on_exception=True, schedule={'skip': '8ba', 'active': '1ba'}), profiler=profiler)
    assert not any('is disabled' in str(warning.message) for warning in caught)
    assert list(Path('composers_torch').rglob('*.json*'))
    assert [entry.status for entry in entries(RUN, 'memory_snapshot')] == ['saved']
