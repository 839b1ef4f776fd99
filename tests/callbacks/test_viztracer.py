"""VizTracer with the real tool: traces are read back, training is unchanged, nothing is left behind."""

from __future__ import annotations

import builtins
import cProfile
import gc
import gzip
import json
import multiprocessing.managers  # registers a lock for forks; boto3 imports it in a first training
import multiprocessing.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.core import Callback, State
from composer.loggers import Logger
from viztracer.vcompressor import VCompressor

from composer_memprof import MemorySnapshot, Memray, TorchProfiler, VizTracer
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.python_calls.viztracer import VizTracerRecorder
from composer_memprof.report.html.calls.call_timeline import call_timeline_page, read_calls
from tests.conftest import entries, loader, make_trainer, train

FOLDER = Path('test-run/memprof')
JSON = FOLDER / 'rank0.4.viztracer.json'
SOON = {'skip': '2ba', 'active': '2ba'}
HOSTILE = '</script><img src=x onerror="window.taken=1"><!--'


def hooks() -> dict[str, Any]:
    """Everything that VizTracer changes in the process."""
    return {
        'calls': sys.getprofile(),
        'new threads': threading.getprofile(),
        'global': vars(builtins).get('__viz_tracer__'),
        'print': builtins.print,
        'gc': list(gc.callbacks),
        'subprocess': subprocess.Popen.__init__,
        'spawn': multiprocessing.util.spawnv_passfds,
        'fork': len(multiprocessing.util._afterfork_registry),  # type: ignore[attr-defined]
        'attributes': '__originit__' in vars(subprocess.Popen),
    }


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before, threads = hooks(), threading.active_count()
    yield
    after = hooks()
    assert after['calls'] is after['new threads'] is None
    assert after.pop('fork') <= before.pop('fork')  # garbage collection removes those of earlier tracers
    assert after == before
    assert threading.active_count() <= threads


def calls(path: Path) -> list[str]:
    """The name of the called function, for each call."""
    return [event['name'].split(' ')[0] for event in json.loads(path.read_text())['traceEvents'] if event['ph'] == 'X']


# -- the recorder, without a Trainer ------------------------------------------------------------------------------


def outer() -> None:
    inner()
    inner()


def inner() -> None:
    time.sleep(0.002)


def test_a_recording_has_each_call_and_its_time() -> None:
    with VizTracerRecorder() as recorder:
        recorder.mark('here')
        outer()
    assert sys.getprofile() is None
    events = recorder.result.events()
    assert [event['name'] for event in events if event['ph'] == 'i'] == ['here']
    found = {name: [e for e in events if e['ph'] == 'X' and e['name'].startswith(name)] for name in ('outer', 'inner')}
    assert [len(found[name]) for name in ('outer', 'inner')] == [1, 2]
    (whole,) = found['outer']
    assert all(whole['ts'] <= event['ts'] and event['dur'] >= 2000 for event in found['inner'])
    table, functions = read_calls(events)
    by_name = {function.name.split(' ')[0]: function for function in functions}
    assert by_name['inner'].calls == 2
    assert by_name['time.sleep'].own_us == pytest.approx(by_name['time.sleep'].total_us)
    assert by_name['outer'].own_us == pytest.approx(by_name['outer'].total_us - by_name['inner'].total_us)
    depths = {table.names[name].split(' ')[0]: depth for name, depth in zip(table.name, table.depth)}
    assert (depths['inner'], depths['time.sleep']) == (depths['outer'] + 1, depths['outer'] + 2)


def test_its_own_form_tells_the_same_calls() -> None:
    with VizTracerRecorder(ignore_c_function=True) as recorder:
        outer()
    recorder.result.write_json(Path('a.json'))
    recorder.result.write_compressed(Path('a.cvf'))
    unpacked = VCompressor().decompress('a.cvf')
    names = sorted(event['name'].split(' ')[0] for event in unpacked['traceEvents'] if event['ph'] == 'X')
    assert names == sorted(calls(Path('a.json')))
    assert names.count('inner') == 2 and 'time.sleep' not in names
    assert sorted(path.name for path in Path().iterdir()) == ['a.cvf', 'a.json']


def test_a_buffer_that_overflows_keeps_the_newest_calls() -> None:
    with VizTracerRecorder(tracer_entries=20) as recorder:
        for _ in range(1000):
            abs(1)
        outer()
    names = [event['name'].split(' ')[0] for event in recorder.result.events() if event['ph'] == 'X']
    assert len(names) <= 20 and 'outer' in names


def test_a_trace_that_goes_takes_nobody_elses_hook_along() -> None:
    with VizTracerRecorder(tracer_entries=100) as recorder:
        outer()
    threading.setprofile(print)
    try:
        del recorder
        gc.collect()
        assert threading.getprofile() is print
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]


# -- in a Trainer -------------------------------------------------------------------------------------------------


def test_a_window_leaves_json_and_a_page() -> None:
    train(VizTracer(schedule=SOON), batches=6)
    assert sum(name.endswith('_train_microbatch') for name in calls(JSON)) == 2
    events = json.loads(JSON.read_text())['traceEvents']
    assert [event['name'] for event in events if event['ph'] == 'i'] == ['batch 2', 'batch 3']
    assert {event['pid'] for event in events} == {os.getpid()}, 'the pid of the training process, not of the writer'
    listed = {entry.kind: entry.path for entry in entries(Path('test-run')) if entry.status == 'saved'}
    assert listed == {'viztracer': 'rank0.4.viztracer.json', 'viztracer.page': 'rank0.4.viztracer.html'}
    assert {path.name for path in FOLDER.iterdir()} == {*listed.values(), 'rank0.manifest.jsonl'}


def test_training_is_bit_identical_with_and_without() -> None:
    bare = train(batches=8).state.model
    watched = train(VizTracer(schedule=SOON, log_func_args=True, log_gc=True, log_print=True), batches=8).state.model
    for one, other in zip(bare.parameters(), watched.parameters()):
        assert torch.equal(one, other)


def test_json_can_be_zipped_and_left_without_a_page() -> None:
    train(VizTracer(schedule=SOON, compress=True, page=False), batches=6)
    with gzip.open(f'{JSON}.gz') as file:
        assert json.load(file)['traceEvents']
    assert len(entries(Path('test-run'))) == 1


def test_the_filename_says_that_its_own_form_is_wanted() -> None:
    train(VizTracer(schedule=SOON, filename='trace.{batch}.cvf'), batches=6)
    assert VCompressor().decompress(str(FOLDER / 'trace.4.cvf'))['traceEvents']
    assert {path.name for path in FOLDER.iterdir()} == {'trace.4.cvf', 'trace.4.html', 'rank0.manifest.jsonl'}


def test_window_after_window_keeps_the_newest() -> None:
    callback = VizTracer(schedule={'active': '2ba', 'every': '2ba'}, page=False, num_artifacts_to_keep=1)
    train(callback, batches=6)
    assert [entry.status for entry in entries(Path('test-run'))] == ['removed', 'removed', 'saved']


def test_evaluation_has_windows_of_its_own() -> None:
    callback = VizTracer(schedule={'active': '2ba', 'stages': ['eval']}, page=False)
    train(callback, batches=3, eval_dataloader=loader(4), eval_interval='1ep')
    (entry,) = entries(Path('test-run'))
    assert entry.path == 'rank0.3.viztracer.eval2.json'


def test_beside_memray_in_windows_apart_each_records_its_own() -> None:
    train(VizTracer(page=False), Memray(flamegraph=False, leaks=False), TorchProfiler(), MemorySnapshot(), batches=15)
    kinds = {entry.kind for entry in entries(Path('test-run')) if entry.status == 'saved'}
    assert kinds >= {'viztracer', 'memray', 'torch_profiler', 'memory_snapshot'}


class Spawns(Callback):
    def before_forward(self, state: State, logger: Logger) -> None:
        if state.timestamp.batch == 2:
            subprocess.run([sys.executable, '-c', 'print(abs(-1))'], check=True, capture_output=True)
        if state.timestamp.batch == 5:
            self.patched = hasattr(subprocess.Popen, '__originit__')


def test_processes_that_are_started_meanwhile_leave_traces_of_their_own() -> None:
    spawns = Spawns()
    callback = VizTracer(schedule={'skip': '2ba', 'active': '3ba'}, patch=True, page=False)
    train(callback, spawns, batches=3, train_dataloader=loader(3, num_workers=1), max_duration='2ep')
    assert spawns.patched is False
    found = [FOLDER / entry.path for entry in entries(Path('test-run'), 'viztracer.process')]
    names = [calls(path) for path in found]
    assert len(found) == 2, 'the process, and the worker of the second epoch'
    assert any('_worker_loop' in called for called in names)
    assert any('builtins.abs' in called for called in names)
    assert not [path for path in FOLDER.iterdir() if path.name.startswith('.')]


def test_with_patch_a_window_of_an_epochs_first_batch_has_the_traces_of_its_workers(
    recwarn: pytest.WarningsRecorder,
) -> None:
    callback = VizTracer(schedule={'active': '1ba'}, patch=True, page=False)
    train(callback, train_dataloader=loader(3, num_workers=2), max_duration='1ep')
    names = [calls(FOLDER / entry.path) for entry in entries(Path('test-run'), 'viztracer.process')]
    assert len(names) == 2 and all('_worker_loop' in called for called in names)
    assert not [each for each in recwarn if issubclass(each.category, MemprofWarning)]


def test_with_patch_a_window_in_which_no_process_starts_says_how_to_trace_the_workers() -> None:
    callback = VizTracer(patch=True, page=False)
    with pytest.warns(MemprofWarning, match='none started in the one up to batch 10.*begin the window with that batch'):
        train(callback, train_dataloader=loader(11, num_workers=1), max_duration='1ep')
    assert not entries(Path('test-run'), 'viztracer.process')


# -- bad endings --------------------------------------------------------------------------------------------------


class Breaks(Callback):
    def after_forward(self, state: State, logger: Logger) -> None:
        if state.timestamp.batch == 3:
            raise RuntimeError('on purpose')


@pytest.mark.parametrize('patch', [False, True])
def test_an_exception_inside_a_window_leaves_what_was_recorded(patch: bool) -> None:
    trainer = make_trainer(VizTracer(schedule=SOON, patch=patch), Breaks(), batches=6)
    with pytest.raises(RuntimeError, match='on purpose'):
        trainer.fit()
    trainer.close()
    trainer.close()
    assert any('after_forward' in name for name in calls(FOLDER / 'rank0.3.viztracer.json'))
    assert (FOLDER / 'rank0.3.viztracer.html').exists()


def test_a_profiler_of_the_users_own_is_left_alone() -> None:
    trainer = make_trainer(VizTracer(schedule=SOON), batches=6)
    profile = cProfile.Profile()
    with pytest.warns(MemprofWarning, match=r'another Python profiler \(c?Profile\) is recording'):
        profile.runcall(trainer.fit)
    trainer.close()
    assert [entry.status for entry in entries(Path('test-run'))] == ['skipped']
    assert any(str(getattr(row.code, 'co_name', '')) == 'fit' for row in profile.getstats())


# -- the page -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_draws_the_calls_and_loads_nothing(visit: Callable[..., Any]) -> None:
    train(VizTracer(schedule=SOON), batches=6)
    page = visit((FOLDER / 'rank0.4.viztracer.html').resolve())
    page.wait_for_selector('body[data-drawn]')
    drawn = int(page.get_attribute('body', 'data-drawn'))
    assert 1000 < drawn <= len(calls(JSON))
    page.fill('#find', 'small_training.py')
    assert 'drawn calls' in page.inner_text('#found') and not page.inner_text('#found').startswith('0 ')
    row = page.locator('#functions tbody tr:visible').first
    assert 'small_training.py' in row.inner_text()
    box = page.locator('#timeline').bounding_box()
    for share in range(1, 40):  # not every moment has a call in the second row
        page.mouse.move(box['x'] + box['width'] * share / 40, box['y'] + 30)
        if page.locator('#tip').is_visible():
            break
    page.wait_for_selector('#tip:visible', timeout=1000)
    assert 's, from' in page.inner_text('#tip')
    for key in ('+', 'ArrowRight', 'ArrowLeft', '-', '0'):
        page.press('#timeline', key)
    page.mouse.click(box['x'] + box['width'] / 2, box['y'] + 30)
    page.click('#reset')


def test_what_functions_are_called_can_not_escape_the_page(visit: Callable[..., Any]) -> None:
    namespace: dict[str, Any] = {}
    exec(compile('def f():\n    return abs(1)\n', HOSTILE, 'exec'), namespace)
    with VizTracerRecorder() as recorder:
        recorder.mark(HOSTILE)
        namespace['f']()
    Path('a.html').write_text(call_timeline_page(recorder.result.events(), HOSTILE))
    assert HOSTILE not in Path('a.html').read_text()
    page = visit(Path('a.html').resolve())
    page.wait_for_selector('body[data-drawn]')
    assert page.evaluate('window.taken') is None
    assert HOSTILE in page.inner_text('#functions')


def test_of_very_many_calls_the_longest_are_drawn_and_all_are_summed_up() -> None:
    events = [
        {'ph': 'X', 'pid': 1, 'tid': 1, 'ts': 10.0 * i, 'dur': 1.0 + (i * 7919 % 1000) / 300, 'name': f'f{i % 7}'}
        for i in range(60_000)
    ]
    page = call_timeline_page(events, 'many', max_bytes=100_000)
    assert len(page) <= 100_000
    assert 'Of 60,000 calls the ' in page
    assert f'<td>{60_000 // 7 + 1:,}</td>' in page
    assert 'All 0 calls are drawn' in call_timeline_page([], 'none')


# -- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        ({'ignore_c_functions': True}, "did you mean 'ignore_c_function'"),
        ({'output_file': 'x.json'}, 'output_file'),
        ({'tracer_entries': -1}, 'above 0'),
        ({'tracer_entries': 'many'}, 'above 0'),
        ({'max_stack_depth': 'deep'}, 'max_stack_depth must be an integer'),
        ({'ignore_c_function': 'yes'}, 'must be a boolean'),
        ({'include_files': ['a'], 'exclude_files': ['b']}, 'give one of them'),
        ({'plugins': ['no_such_plugin']}, 'plugins'),
        ({'patch': 'yes'}, 'true or false'),
        ({'page': 1}, 'true or false'),
        ({'filename': 'a.cvf', 'compress': True}, 'give one of them'),
    ],
)
def test_what_is_not_allowed_is_refused_at_construction(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        VizTracer(**arguments)
    assert words in str(caught.value) and '\n' not in str(caught.value)
    assert next(iter(arguments)) in str(caught.value)


def test_without_viztracer_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'viztracer', None)
    with pytest.raises(ValueError, match=r"pip install 'composer_memprof\[viztracer\]'"):
        VizTracer()


@pytest.mark.parametrize('other', [MemorySnapshot, Memray, VizTracer, TorchProfiler])
def test_two_that_follow_python_calls_in_one_batch_are_refused_by_name(other: Any) -> None:
    first = other(schedule=SOON, with_stack=True) if other is TorchProfiler else other(schedule=SOON)
    with pytest.raises(ValueError, match=f'{other.__name__} and VizTracer would both record batch 2'):
        make_trainer(first, VizTracer(schedule=SOON), batches=6)


def test_torchs_profiler_is_taken_where_log_torch_wants_it() -> None:
    with pytest.raises(ValueError, match='TorchProfiler and VizTracer would both record batch 2'):
        make_trainer(TorchProfiler(schedule=SOON), VizTracer(schedule=SOON, log_torch=True), batches=6)
    train(VizTracer(schedule=SOON, log_torch=True), batches=6)
    names = {event.get('name') for event in json.loads(JSON.read_text())['traceEvents']}
    assert 'aten::linear' in names
