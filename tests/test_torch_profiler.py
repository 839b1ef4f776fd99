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
from composer.profiler import JSONTraceHandler, Profiler, cyclic_schedule

from composer_memprof import TorchProfiler
from composer_memprof.recorders.kineto import KinetoRecorder, MemoryTimeline, export_trace, memory_timeline
from composer_memprof.report.html.memory_timeline import write_memory_timeline
from tests.conftest import entries, make_trainer, train

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
