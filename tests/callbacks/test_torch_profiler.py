"""TorchProfiler: what Composer documents for its class of this name, and what ours adds."""

from __future__ import annotations

import gc
import gzip
import json
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.core import Timestamp
from composer.profiler import JSONTraceHandler, Profiler, ProfilerAction, cyclic_schedule

from composer_memprof import MemorySnapshot, TorchProfiler
from composer_memprof.analysis.memory.summary import read_summary
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.kineto import KinetoRecorder, MemoryTimeline, export_trace, memory_timeline
from composer_memprof.report.html.memory_timeline import write_memory_timeline
from composer_memprof.schedule import window
from tests.conftest import entries, loader, make_trainer, train

RUN = Path('test-run/torch_traces')
SOON: dict[str, Any] = {'skip': '1ba', 'warmup': '1ba', 'active': '2ba'}


def trace_events(path: Path) -> list[dict[str, Any]]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == '.gz' else path.read_bytes()
    return json.loads(content)['traceEvents']


def test_a_window_writes_a_trace_of_its_batches_and_a_summary() -> None:
    train(TorchProfiler(schedule=SOON))
    names = {event.get('name') for event in trace_events(RUN / 'rank0.4.pt.trace.json')}
    assert {'ProfilerStep#2', 'ProfilerStep#3'} <= names
    assert not {'ProfilerStep#1', 'ProfilerStep#4'} & names
    assert 'aten::addmm' in names
    assert 'aten::addmm' in (RUN / 'rank0.4.pt.trace.summary.txt').read_text()


def steps_of(path: Path) -> list[tuple[str, list[str]]]:
    """Each step's name, with the data loading in it and the DataLoader that did it, in order of time."""
    events = trace_events(path)
    loads = [event for event in events if str(event.get('name')).startswith('enumerate(DataLoader)')]
    steps = sorted(
        (event for event in events if str(event.get('name')).startswith('ProfilerStep#')),
        key=lambda event: event['ts'],
    )
    ends = [step['ts'] + step['dur'] for step in steps]
    assert all(end <= step['ts'] + 1e-3 for end, step in zip(ends, steps[1:])), 'steps overlap'
    return [
        (step['name'], [load['name'] for load in loads if step['ts'] <= load['ts'] < end])
        for step, end in zip(steps, ends)
    ]


LOADED = ['enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__']


def test_the_loading_of_a_batch_lies_in_its_step_in_a_window_of_one_batch_too() -> None:
    train(TorchProfiler(schedule={'active': '1ba', 'every': '3ba'}), batches=6)
    assert steps_of(RUN / 'rank0.1.pt.trace.json') == [('ProfilerStep#0', LOADED)]
    assert steps_of(RUN / 'rank0.4.pt.trace.json') == [('ProfilerStep#3', LOADED)]
    train(TorchProfiler(schedule=SOON, folder='several'))
    assert steps_of(Path('several/rank0.4.pt.trace.json')) == [('ProfilerStep#2', LOADED), ('ProfilerStep#3', LOADED)]


def test_steps_are_those_of_composers_own_torch_profiler() -> None:
    profiler = Profiler(
        schedule=cyclic_schedule(skip_first=1, wait=0, warmup=1, active=2, repeat=1),
        trace_handlers=[],
        sys_prof_cpu=False,
        torch_prof_folder='composers',
        torch_prof_memory_filename=None,
    )
    train(profiler=profiler)
    train(TorchProfiler(schedule=SOON))
    assert steps_of(RUN / 'rank0.4.pt.trace.json') == steps_of(Path('composers/rank0.4.pt.trace.json'))


def test_a_window_over_epochs_has_one_step_for_each_batch() -> None:
    train(TorchProfiler(schedule=window('1ep', skip='1ep')), batches=3, max_duration='3ep')
    (path,) = RUN.glob('*.trace.json')
    assert steps_of(path) == [(f'ProfilerStep#{number}', LOADED) for number in (3, 4, 5)]
    train(TorchProfiler(schedule=window('4ba', skip='1ba'), folder='across'), batches=3, max_duration='2ep')
    assert [name for name, _ in steps_of(Path('across/rank0.5.pt.trace.json'))] == [
        f'ProfilerStep#{number}' for number in (1, 2, 3, 4)
    ]


def test_an_evaluation_before_a_window_is_not_recorded() -> None:
    train(
        TorchProfiler(schedule={'skip': '2ba', 'active': '1ba'}),
        batches=4,
        eval_dataloader=loader(3),
        eval_interval='2ba',
    )
    (path,) = RUN.glob('*.trace.json')
    assert steps_of(path) == [('ProfilerStep#2', LOADED)]
    assert sum(event.get('name') == LOADED[0] for event in trace_events(path)) == 1


def test_steps_of_an_evaluation_have_the_evaluations_own_numbers() -> None:
    callback = TorchProfiler(schedule={'skip': '1ba', 'active': '2ba', 'every': '3ba'}, stages=['eval'])
    train(callback, batches=4, eval_dataloader=loader(3), eval_interval='2ba')
    first, second = RUN / 'rank0.2.eval3.pt.trace.json', RUN / 'rank0.4.eval6.pt.trace.json'
    assert steps_of(first) == [('ProfilerStep#1', LOADED), ('ProfilerStep#2', LOADED)]
    assert steps_of(second) == [('ProfilerStep#4', LOADED), ('ProfilerStep#5', LOADED)]


def test_windows_of_training_and_of_its_evaluations_alternate() -> None:
    callback = TorchProfiler(schedule={'active': '1ba', 'every': '2ba'}, stages=['train', 'eval'])
    train(callback, batches=4, eval_dataloader=loader(1), eval_interval='2ba')
    found = {path.name: [name for name, _ in steps_of(path)] for path in RUN.glob('*.trace.json')}
    assert found == {
        'rank0.1.pt.trace.json': ['ProfilerStep#0'],
        'rank0.2.eval1.pt.trace.json': ['ProfilerStep#0'],
        'rank0.3.pt.trace.json': ['ProfilerStep#2'],
    }


def test_windows_of_two_callbacks_that_touch_are_both_recorded(recwarn: pytest.WarningsRecorder) -> None:
    first = TorchProfiler(schedule={'skip': '3ba', 'active': '1ba'}, folder='first')
    second = TorchProfiler(schedule={'skip': '2ba', 'active': '1ba'}, folder='second')
    train(first, second, batches=6)
    assert [name for name, _ in steps_of(Path('first/rank0.4.pt.trace.json'))] == ['ProfilerStep#3']
    assert [name for name, _ in steps_of(Path('second/rank0.3.pt.trace.json'))] == ['ProfilerStep#2']
    assert not [each for each in recwarn if issubclass(each.category, MemprofWarning)]


@pytest.mark.parametrize('order', [1, -1])
def test_a_snapshot_with_equal_windows_has_its_blocks_though_the_session_starts_before_its_window(order: int) -> None:
    gc.collect()
    train(*[MemorySnapshot(schedule=SOON), TorchProfiler(schedule=SOON)][::order])
    assert [name for name, _ in steps_of(RUN / 'rank0.4.pt.trace.json')] == ['ProfilerStep#2', 'ProfilerStep#3']
    gc.collect()  # tensors that the first Trainer left behind would count
    alone = MemorySnapshot(schedule=SOON, folder='alone')
    train(alone)
    shared, own = (read_summary(folder / 'rank0.4.memory_snapshot.summary.json') for folder in (RUN, Path('alone')))
    assert shared.devices[0].peak.bytes == own.devices[0].peak.bytes


def test_a_schedule_function_is_asked_once_a_batch_so_that_it_may_count() -> None:
    asked: list[int] = []

    def counts(state: Any) -> ProfilerAction:
        asked.append(state.timestamp.batch.value)
        return ProfilerAction.ACTIVE_AND_SAVE if len(asked) in (3, 6) else ProfilerAction.SKIP

    train(TorchProfiler(schedule=counts), batches=4, max_duration='2ep')
    assert asked == list(range(8))
    traces = {path.name: steps_of(path) for path in RUN.glob('*.trace.json')}
    assert traces == {
        'rank0.3.pt.trace.json': [('ProfilerStep#2', LOADED)],
        'rank0.6.pt.trace.json': [('ProfilerStep#5', LOADED)],
    }


@pytest.mark.parametrize('order', [1, -1])
def test_windows_that_touch_each_keep_their_files_and_batches_in_a_shared_session(order: int) -> None:
    touching: dict[str, Any] = {'skip': '1ba', 'active': '1ba', 'every': '1ba', 'repeat': 2}
    train(*[MemorySnapshot(schedule=touching), TorchProfiler(schedule=touching)][::order], batches=5)
    traces = {path.name: [name for name, _ in steps_of(path)] for path in RUN.glob('*.trace.json')}
    assert traces == {'rank0.2.pt.trace.json': ['ProfilerStep#1'], 'rank0.3.pt.trace.json': ['ProfilerStep#2']}
    batches = {path.name: set(load_snapshot(path).phases.batch.tolist()) for path in RUN.glob('*.pickle')}
    assert batches == {'rank0.2.memory_snapshot.pickle': {1}, 'rank0.3.memory_snapshot.pickle': {2}}


def test_workers_that_start_inside_of_a_window_load_its_batches() -> None:
    callback = TorchProfiler(schedule=window('1ba', every='2ba'), with_stack=True)
    train(callback, train_dataloader=loader(2, num_workers=2), max_duration='2ep')
    assert steps_of(RUN / 'rank0.3.pt.trace.json') == [
        ('ProfilerStep#2', ['enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__'])
    ]


def test_tensorboards_plugin_reads_the_traces() -> None:
    data = pytest.importorskip('torch_tb_profiler.profiler.data')
    train(TorchProfiler(schedule=SOON, compress=True))
    path = RUN / 'rank0.4.pt.trace.json.gz'
    from torch_tb_profiler import consts

    assert any(pattern.match(path.name) for pattern in [consts.WORKER_PATTERN])
    from torch_tb_profiler.io.cache import Cache

    run = data.RunProfileData.parse('rank0', 0, str(path), Cache())
    run.process()
    assert run.profiler_start_ts > 0
    assert len(run.steps_costs) == 2


def test_summary_sort_by_and_summary_row_limit_shape_the_summary() -> None:
    train(TorchProfiler(schedule=SOON, summary_sort_by='self_cpu_memory_usage', summary_row_limit=3))
    rows = [
        line for line in (RUN / 'rank0.4.pt.trace.summary.txt').read_text().splitlines() if 'ms' in line or 'us' in line
    ]
    assert len([row for row in rows if not row.startswith('Self')]) <= 4
    train(TorchProfiler(schedule=SOON, summary_row_limit=0, folder='other'))
    assert [entry.kind for entry in entries(Path('other'))] == ['torch_profiler']


def test_the_summary_tells_input_shapes_apart_and_shows_names_in_full() -> None:
    train(TorchProfiler(schedule=SOON, record_shapes=True, summary_row_limit=-1, summary_group_by_input_shapes=True))
    lines = (RUN / 'rank0.4.pt.trace.summary.txt').read_text().splitlines()
    shapes = [line for line in lines if line.lstrip().startswith('aten::addmm ')]
    assert len(shapes) == 2 and '[[32], [8, 16], [16, 32]' in shapes[0] + shapes[1]
    long = 'autograd::engine::evaluate_function: torch::autograd::AccumulateGrad'
    for width, shown in ((0, long), (20, 'autograd::engine:...')):
        folder = f'width{width}'
        train(TorchProfiler(schedule=SOON, folder=folder, summary_row_limit=-1, summary_max_name_column_width=width))
        lines = Path(folder, 'rank0.4.pt.trace.summary.txt').read_text().splitlines()
        names = [line.strip().partition('  ')[0] for line in lines]
        assert shown in names


def test_gz_is_appended_to_both_names_unless_they_have_it(s3: Any) -> None:
    train(TorchProfiler(schedule=SOON, use_gzip=True, remote_file_name='s3://runs/a/{batch}.pt.trace.json'))
    train(TorchProfiler(schedule=SOON, filename='{rank}-{batch}.json.gz', folder='b', remote_file_name='s3://runs/b'))
    assert (RUN / 'rank0.4.pt.trace.json.gz').exists()
    assert sorted(s3.find('runs')) == [
        'runs/a/4.pt.trace.json.gz',
        'runs/a/4.pt.trace.summary.txt',
        'runs/b/0-4.json.gz',
        'runs/b/0-4.summary.txt',
    ]
    assert trace_events(Path('b/0-4.json.gz'))


def test_num_traces_to_keep_and_saved_traces_work_as_documented() -> None:
    callback = TorchProfiler(schedule={'active': '1ba', 'every': '3ba'}, num_traces_to_keep=2, remote_file_name=None)
    train(callback, batches=12)
    assert sorted(path.name for path in RUN.glob('*.json')) == ['rank0.10.pt.trace.json', 'rank0.7.pt.trace.json']
    assert [(time.batch.value, paths) for time, paths in callback.saved_traces] == [
        (7, [RUN.absolute() / 'rank0.7.pt.trace.json']),
        (10, [RUN.absolute() / 'rank0.10.pt.trace.json']),
    ]
    assert isinstance(callback.saved_traces[0][0], Timestamp)


def test_keeping_none_deletes_after_the_upload(s3: Any) -> None:
    callback = TorchProfiler(schedule=SOON, num_traces_to_keep=0, remote_file_name='s3://runs/{run_name}')
    train(callback)
    assert not list(RUN.glob('*.json'))
    assert s3.exists('runs/test-run/rank0.4.pt.trace.json')
    assert callback.saved_traces == []
    assert {entry.status for entry in entries(RUN)} == {'removed'}


def test_keeping_none_without_an_upload_keeps_one() -> None:
    train(TorchProfiler(schedule={'active': '1ba', 'every': '3ba'}, num_traces_to_keep=0))
    assert [path.name for path in RUN.glob('*.json')] == ['rank0.10.pt.trace.json']


def test_the_memory_page_works_on_a_cpu() -> None:
    callback = TorchProfiler(
        schedule=SOON,
        record_shapes=True,
        with_stack=True,
        memory_filename='rank{rank}.{batch}.pt.trace.memory.html',
        memory_remote_file_name=None,
    )
    train(callback)
    page = (RUN / 'rank0.4.pt.trace.memory.html').read_text()
    assert 'Memory over time on cpu' in page
    assert '<polygon' in page
    assert 'http' not in page, 'nothing is loaded from elsewhere'


def test_the_memory_timeline_is_in_microseconds_and_bytes() -> None:
    with KinetoRecorder(record_shapes=True, profile_memory=True, with_stack=True) as recorder:
        begin = time.perf_counter()
        kept = [torch.ones(1 << 18)]
        time.sleep(0.2)
        kept.append(torch.ones(1 << 18) * 2)
        taken = (time.perf_counter() - begin) * 1e6
    assert recorder.result is not None
    timeline = memory_timeline(recorder.result, 'cpu')
    assert 0.2e6 <= timeline.times_us[-1] <= 1.5 * taken
    assert 3 << 20 <= timeline.peak_bytes <= 4 << 20


def test_the_memory_page_names_its_peak_and_says_when_points_are_merged(tmp_path: Path) -> None:
    sizes = [index % 1000 for index in range(5000)]
    sizes[3333] = 5 << 20
    write_memory_timeline(MemoryTimeline('cpu', list(range(5000)), {'activation': sizes}), tmp_path / 'page.html')
    page = (tmp_path / 'page.html').read_text()
    assert 'Peak: <strong>5.0 MiB</strong>' in page
    assert 'Drawn from 5000 events' in page
    write_memory_timeline(MemoryTimeline('cpu', [], {}), tmp_path / 'empty.html')
    assert 'Peak: <strong>0 B</strong>' in (tmp_path / 'empty.html').read_text()


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


def test_the_recorder_works_without_a_trainer(tmp_path: Path) -> None:
    with KinetoRecorder(profile_memory=True) as recorder:
        torch.ones(8) @ torch.ones(8)
    assert recorder.result is not None
    export_trace(recorder.result, tmp_path / 'trace.json')
    assert 'aten::ones' in {event.get('name') for event in trace_events(tmp_path / 'trace.json')}


def test_a_result_is_freed_with_its_last_reader_without_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        with KinetoRecorder() as recorder:
            torch.ones(3) + 1
        assert recorder.result is not None
        gone = weakref.ref(recorder.result.profile)
        recorder.result = None
        assert gone() is None
    finally:
        gc.enable()


def test_a_trace_does_not_contain_its_path() -> None:
    with KinetoRecorder() as recorder:
        torch.ones(3) + 1
    assert recorder.result is not None
    export_trace(recorder.result, Path('private.json'))
    assert 'private' not in Path('private.json').read_text()
    assert json.loads(Path('private.json').read_text())['traceEvents']
