"""TorchProfiler: traces, summaries and the page of its memory."""

from __future__ import annotations

import gc
import json
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.core import Timestamp

from composer_memprof import TorchProfiler
from composer_memprof.recorders.kineto import KinetoRecorder, MemoryTimeline, export_trace, memory_timeline
from composer_memprof.report.html.memory_timeline import write_memory_timeline
from tests.conftest import entries, train
from tests.support.recordings.traces import RUN, SOON, trace_events


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
