"""TorchProfiler: what Composer documents for its class, and works beside its Profiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.profiler import JSONTraceHandler, Profiler, cyclic_schedule

from composer_memprof import TorchProfiler
from composer_memprof.messages import MemprofWarning
from tests.conftest import entries, make_trainer, train
from tests.support.recordings.traces import RUN, SOON


def test_further_arguments_reach_torchs_profiler() -> None:
    observer = torch.profiler.ExecutionTraceObserver().register_callback('execution.json')
    callback = TorchProfiler(
        schedule=SOON,
        with_modules=True,
        activities=['cpu'],
        experimental_config={'verbose': True},
        execution_trace_observer=observer,
    )
    train(callback)
    assert json.loads(Path('execution.json').read_text())['nodes']
    assert json.loads((RUN / 'rank0.4.pt.trace.json').read_text())['with_modules'] == 1


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        ({'with_modul': True}, ['with_modul=True', "'with_modules'"]),
        ({'on_trace_ready': print}, ['on_trace_ready', 'with_modules']),
        ({'activities': ['gpu']}, ["'gpu'", 'cpu']),
        ({'experimental_config': {'verbos': True}}, ['experimental_config', 'verbos']),
        ({'memory_filename': 'x.png'}, ["memory_filename='x.png'", '.html']),
        ({'memory_filename': 'x.html'}, ['record_shapes=True', 'with_stack=True']),
        ({'num_traces_to_keep': 3, 'num_artifacts_to_keep': 5}, ['num_traces_to_keep=3', 'num_artifacts_to_keep=5']),
        ({'summary_group_by_input_shapes': True}, ['record_shapes=True']),
        ({'summary_max_name_column_width': 3}, ['summary_max_name_column_width', 'from 4']),
        ({'summary_sort_by': 'time'}, ["summary_sort_by='time'", 'cpu_time_total']),
    ],
)
def test_a_wrong_parameter_is_refused_at_construction(arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        TorchProfiler(**arguments)
    assert '\n' not in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_it_serves_a_composer_profiler_with_its_schedule_and_its_trace_handlers() -> None:
    profiler = Profiler(
        schedule=cyclic_schedule(skip_first=1, wait=0, warmup=1, active=2, repeat=1),
        trace_handlers=[JSONTraceHandler(folder='composers', merged_trace_filename=None)],
        sys_prof_cpu=False,
        torch_prof_profile_memory=False,
        torch_prof_with_flops=False,
    )
    callback = TorchProfiler()
    train(callback, profiler=profiler)
    assert [entry.batch for entry in entries(RUN, 'torch_profiler')] == [4]
    merged = ''.join(path.read_text() for path in Path('composers').glob('*.json'))
    assert 'aten::addmm' in merged
    assert len(callback.saved_traces) == 1


def test_its_own_schedule_counts_before_the_composer_profilers() -> None:
    profiler = Profiler(
        schedule=cyclic_schedule(skip_first=1, wait=0, warmup=1, active=2, repeat=1),
        trace_handlers=[],
        sys_prof_cpu=False,
        torch_prof_profile_memory=False,
        torch_prof_with_flops=False,
    )
    train(TorchProfiler(schedule={'skip': '6ba', 'active': '1ba'}), profiler=profiler)
    assert [entry.batch for entry in entries(RUN, 'torch_profiler')] == [7]


def profiler_that_merges(skip: int) -> Profiler:
    return Profiler(
        schedule=cyclic_schedule(skip_first=skip, wait=0, warmup=1, active=2, repeat=1),
        trace_handlers=[JSONTraceHandler(folder='composers', merged_trace_filename=None)],
        sys_prof_cpu=False,
        torch_prof_profile_memory=False,
        torch_prof_with_flops=False,
    )


def test_a_window_of_its_own_schedule_is_merged_where_the_composer_profiler_records_too() -> None:
    train(TorchProfiler(schedule=SOON), profiler=profiler_that_merges(skip=1))
    merged = ''.join(path.read_text() for path in Path('composers').glob('*.json'))
    assert 'aten::addmm' in merged and 'ProfilerStep#3' in merged


def test_a_window_that_the_composer_profiler_skips_is_said_to_be_missing_in_its_trace() -> None:
    with pytest.warns(MemprofWarning, match='ends at batch 4 is missing .* leave out the schedule of TorchProfiler'):
        train(TorchProfiler(schedule=SOON), profiler=profiler_that_merges(skip=6))
    assert (RUN / 'rank0.4.pt.trace.json').exists()
    assert not any('aten::addmm' in path.read_text() for path in Path('composers').glob('*.json'))


def test_a_cancelled_warm_up_leaves_no_session() -> None:
    trainer = make_trainer(TorchProfiler(schedule={'skip': '3ba', 'warmup': '99ba', 'active': '1ba'}), batches=6)
    with pytest.warns(UserWarning, match='before the first window'):
        trainer.fit()
    trainer.close()
    with torch.profiler.profile() as profile:
        torch.ones(1)
    assert profile.events()
