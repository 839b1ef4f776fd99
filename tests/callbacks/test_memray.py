"""Memray with the real tool: captures are read back, training is unchanged, nothing is left behind."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import memray
import pytest
import torch
from composer.core import Callback, State
from composer.loggers import Logger

from composer_memprof import MemorySnapshot, Memray, SavedTensorsHook
from composer_memprof.artifacts.writing.child.fork import fork
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.python_calls.memray import MemrayRecorder, read_statistics, write_flame_graph
from tests.conftest import Regression, entries, loader, make_trainer, train
from tests.support.processes.python_code import run_python

FOLDER = Path('test-run/memprof')
SOON = {'skip': '2ba', 'active': '2ba'}
BIG = 3_000_000


@pytest.fixture(autouse=True)
def no_tracker_is_left() -> Iterator[None]:
    threads = threading.active_count()
    yield
    assert threading.getprofile() is None
    assert sys.getprofile() is None
    assert not hasattr(threading.Thread, '_ident'), 'memray sets this on every thread'
    assert threading.active_count() <= threads
    with memray.Tracker('another.bin'):
        pass


class Wasteful(Regression):
    """Allocates memory in forward and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def forward(self, batch: Any) -> torch.Tensor:
        self.keep_more()
        return super().forward(batch)

    def keep_more(self) -> None:
        self.kept.append(bytearray(BIG))


def stacks(path: Path) -> dict[str, int]:
    """Bytes that were not freed, by stack; the innermost function is first."""
    with memray.FileReader(path) as reader:
        found: dict[str, int] = {}
        for record in reader.get_leaked_allocation_records(merge_threads=True):
            names = ' '.join(frame[0] for frame in record.stack_trace())
            found[names] = found.get(names, 0) + record.size
        return found


# -- the recorder, without a Trainer ------------------------------------------------------------------------------


def test_a_recording_tells_what_was_held_at_the_peak_and_what_was_left() -> None:
    kept = []
    with MemrayRecorder(Path('a.bin')) as recorder:
        kept.append(bytearray(BIG))
        bytearray(2 * BIG)
    statistics = read_statistics(recorder.path)
    assert 3 * BIG <= statistics.peak_bytes < 3 * BIG + 100_000
    assert statistics.allocated_bytes is not None and statistics.allocated_bytes >= 3 * BIG
    assert statistics.left[0].bytes == pytest.approx(BIG, abs=100_000)
    assert statistics.left[0].function == 'test_a_recording_tells_what_was_held_at_the_peak_and_what_was_left'
    assert statistics.left[0].file == __file__
    assert [place.bytes for place in statistics.at_peak[:2]] == pytest.approx([2 * BIG, BIG], abs=100_000)


def test_an_aggregated_capture_tells_what_it_has() -> None:
    kept = []
    with MemrayRecorder(Path('a.bin'), file_format=memray.FileFormat.AGGREGATED_ALLOCATIONS) as recorder:
        kept.append(bytearray(BIG))
    statistics = read_statistics(recorder.path)
    assert statistics.peak_bytes == pytest.approx(BIG, abs=100_000)
    assert statistics.allocated_bytes is statistics.allocators is None
    write_flame_graph(recorder.path, Path('a.html'))
    assert 'test_an_aggregated_capture' in Path('a.html').read_text()


def test_a_process_that_is_forked_while_recording_is_not_recorded() -> None:
    kept = []

    def work() -> Iterator[int]:
        kept.append(bytearray(5 * BIG))
        yield len(kept)

    with MemrayRecorder(Path('a.bin')) as recorder:
        kept.append(bytearray(BIG))
        child = fork(work)
        assert child is not None
        assert child.results(60) == [2]
    assert read_statistics(recorder.path).peak_bytes < 2 * BIG


# -- in a Trainer -------------------------------------------------------------------------------------------------


def test_a_window_leaves_the_capture_pages_and_figures() -> None:
    train(Memray(schedule=SOON), batches=6, model=Wasteful())
    kept = [size for names, size in stacks(FOLDER / 'rank0.4.memray.bin').items() if 'keep_more' in names]
    assert sum(kept) == pytest.approx(2 * BIG, abs=100_000)
    data = json.loads((FOLDER / 'rank0.4.memray.json').read_text())
    assert (data['rank'], data['epoch'], data['batch']) == (0, 0, 4)
    assert data['left'][0]['function'] == 'keep_more'
    assert 'keep_more' in (FOLDER / 'rank0.4.memray.txt').read_text()
    listed = {entry.kind: entry for entry in entries(Path('test-run')) if entry.status == 'saved'}
    assert set(listed) == {'memray', 'memray.page', 'memray.leaks', 'memray.statistics', 'memray.table'}
    assert {entry.path for entry in listed.values()} == {
        *(f'rank0.4.memray{suffix}' for suffix in ('.bin', '.html', '.leaks.html', '.json', '.txt'))
    }
    assert {path.name for path in FOLDER.iterdir()} == {e.path for e in listed.values()} | {'rank0.manifest.jsonl'}


def test_stacks_reach_from_the_allocation_to_the_trainer() -> None:
    train(Memray(schedule=SOON), batches=6, model=Wasteful())
    (names,) = (names for names in stacks(FOLDER / 'rank0.4.memray.bin') if 'keep_more' in names)
    assert names.startswith('keep_more forward ') and '_train_microbatch ' in names and ' fit ' in names


def test_training_is_bit_identical_with_and_without() -> None:
    bare = train(batches=8).state.model
    watched = train(Memray(native_traces=True, trace_python_allocators=True, schedule=SOON), batches=8).state.model
    for one, other in zip(bare.parameters(), watched.parameters()):
        assert torch.equal(one, other)


def test_the_pages_load_nothing_from_elsewhere(visit: Callable[..., Any]) -> None:
    train(Memray(schedule=SOON), batches=6, model=Wasteful())
    for name in ('rank0.4.memray.html', 'rank0.4.memray.leaks.html'):
        page = visit((FOLDER / name).resolve())  # the fixture fails on any network request
        page.get_by_text('keep_more').first.wait_for(state='attached')


def test_what_a_run_is_called_can_not_escape_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, 'argv', ['</script><script>alert(1)</script>'])
    with MemrayRecorder(Path('a.bin')) as recorder:
        namespace: dict[str, Any] = {}
        code = compile('def f():\n    return bytearray(3_000_000)\n', '</script><script>alert(2)</script>', 'exec')
        exec(code, namespace)
        kept = namespace['f']()
    del kept
    write_flame_graph(recorder.path, Path('a.html'))
    text = Path('a.html').read_text()
    assert '<script>alert' not in text
    assert 'alert(2)' in text


def test_reports_are_left_out_on_demand() -> None:
    train(Memray(flamegraph=False, leaks=False, statistics=False, compress=True, schedule=SOON), batches=6)
    assert {entry.path for entry in entries(Path('test-run')) if entry.status == 'saved'} == {'rank0.4.memray.bin.gz'}


def test_a_folder_takes_window_after_window_and_keeps_the_newest() -> None:
    train(
        Memray(schedule={'active': '2ba', 'every': '2ba'}, flamegraph=False, leaks=False, num_artifacts_to_keep=1),
        batches=6,
    )
    captures = [entry for entry in entries(Path('test-run'), 'memray') if entry.path.endswith('.memray.bin')]
    assert {entry.path: entry.status for entry in captures if 'open' not in entry.path} == {
        'rank0.2.memray.bin': 'removed',
        'rank0.4.memray.bin': 'removed',
        'rank0.6.memray.bin': 'saved',
    }


def test_evaluation_has_windows_of_its_own() -> None:
    callback = Memray(schedule={'active': '2ba', 'stages': ['eval']}, flamegraph=False, leaks=False)
    train(callback, batches=3, eval_dataloader=loader(4), eval_interval='1ep')
    assert (FOLDER / 'rank0.3.memray.eval2.bin').exists()


def test_other_windows_that_end_meanwhile_are_written_by_a_fork_of_the_recorded_process() -> None:
    train(SavedTensorsHook(schedule={'skip': '2ba', 'active': '1ba'}), Memray(schedule=SOON), batches=6)
    assert {entry.kind for entry in entries(Path('test-run')) if entry.status == 'saved'} >= {
        'saved_tensors_hook',
        'memray',
    }


def test_follow_fork_leaves_a_capture_of_each_worker() -> None:
    callback = Memray(follow_fork=True, flamegraph=False, leaks=False, schedule={'active': '3ba'})
    train(callback, batches=6, train_dataloader=loader(6, num_workers=1))
    # Workers are forked before the epoch's first batch, so only the second epoch forks them in the window.
    callback = Memray(follow_fork=True, flamegraph=False, leaks=False, schedule={'skip': '2ba', 'active': '3ba'})
    train(callback, batches=3, train_dataloader=loader(3, num_workers=1), max_duration='2ep', run_name='second')
    found = [entry for entry in entries(Path('second'), 'memray.process') if entry.status == 'saved']
    assert len(found) == 1
    with memray.FileReader(Path('second/memprof') / found[0].path) as reader:
        assert reader.metadata.total_allocations > 0
    assert not [path for path in Path('second/memprof').iterdir() if 'open' in path.name]


# -- bad endings --------------------------------------------------------------------------------------------------


class Breaks(Callback):
    def after_forward(self, state: State, logger: Logger) -> None:
        if state.timestamp.batch == 3:
            raise RuntimeError('on purpose')


def test_an_exception_inside_a_window_leaves_what_was_recorded() -> None:
    trainer = make_trainer(Memray(schedule=SOON), Breaks(), batches=6, model=Wasteful())
    with pytest.raises(RuntimeError, match='on purpose'):
        trainer.fit()
    trainer.close()
    trainer.close()
    assert any('keep_more' in names for names in stacks(FOLDER / 'rank0.3.memray.bin'))
    assert (FOLDER / 'rank0.3.memray.html').exists()


def test_a_capture_is_listed_and_read_before_its_window_ends() -> None:
    class Looks(Callback):
        def batch_end(self, state: State, logger: Logger) -> None:
            if state.timestamp.batch == 6:
                seen.update({entry.path: entry.status for entry in entries(Path('test-run'))})
                copy.write_bytes((FOLDER / 'rank0.2.memray.open.bin').read_bytes())

    seen: dict[str, str] = {}
    copy = Path('as-after-a-kill.bin')
    train(Memray(schedule={'skip': '2ba', 'active': '8ba'}), Looks(), batches=12, model=Wasteful())
    assert seen == {'rank0.2.memray.open.bin': 'open'}
    assert any('keep_more' in names for names in stacks(copy))


# Frames end in other threads all the time, and a collection, which runs Python, comes with every few new objects. Where
# garbage is collected meanwhile, the process ends within seven recordings.
STARTED_AGAIN_AND_AGAIN = """
import gc, sys, threading
from pathlib import Path
from composer_memprof.recorders.python_calls.memray import MemrayRecorder

gc.set_threshold(5)
gc.callbacks.append(lambda *_: sum(range(20)))
sys.setswitchinterval(1e-5)

def call(depth):
    return depth and call(depth - 1) + len(str(depth))

def call_on():
    while True:
        call(300)

for _ in range(3):
    threading.Thread(target=call_on, daemon=True).start()
for _ in range(25):
    with MemrayRecorder(Path('capture.bin')):
        call(50)
assert gc.isenabled()
"""


@pytest.mark.slow
def test_no_collection_of_garbage_ends_the_process_while_the_frames_of_other_threads_are_read() -> None:
    run_python(STARTED_AGAIN_AND_AGAIN)


def test_a_tracker_of_the_users_own_is_left_alone() -> None:
    trainer = make_trainer(Memray(schedule=SOON), batches=6)
    with memray.Tracker('own.bin'), pytest.warns(MemprofWarning, match='another memray tracker is recording'):
        trainer.fit()
    trainer.close()
    assert not entries(Path('test-run'), 'memray.page')
    with memray.FileReader('own.bin') as reader:
        assert reader.metadata.total_allocations > 100


# -- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        ({'trace_python_alocators': True}, "did you mean 'trace_python_allocators'"),
        ({'destination': 'x'}, 'destination'),
        ({'file_name': 'x'}, 'file_name'),
        ({'follow_fork': 'yes'}, 'true or false'),
        ({'native_traces': 1}, 'true or false'),
        ({'memory_interval_ms': -1}, 'memory_interval_ms=-1'),
        ({'memory_interval_ms': 'often'}, "memory_interval_ms='often'"),
        ({'file_format': 'small'}, 'all_allocations, aggregated_allocations'),
        ({'leaks': 'no'}, 'leaks'),
        ({'flamegraph': None}, 'flamegraph'),
        ({'schedule': {'activ': '3ba'}}, 'active'),
    ],
)
def test_what_is_not_allowed_is_refused_at_construction(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        Memray(**arguments)
    assert words in str(caught.value) and '\n' not in str(caught.value)
    assert next(iter(arguments)) in str(caught.value)


def test_every_argument_of_the_installed_tracker_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {'trace_python_allocators': True, 'follow_fork': True, 'memory_interval_ms': 50}
    given: dict[str, Any] = {}
    tracker = memray.Tracker

    def tell(**keywords: Any) -> memray.Tracker:
        given.update(keywords)
        return tracker(**keywords)

    callback = Memray(schedule=SOON, **arguments)
    with monkeypatch.context() as patch:
        patch.setattr(memray, 'Tracker', tell)
        train(callback, batches=6)
    assert given.items() >= arguments.items()
    Memray(**arguments, file_format='aggregated_allocations')


def test_without_memray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'memray', None)
    with pytest.raises(ValueError, match=r"pip install 'composer_memprof\[memray\]'"):
        Memray()


def test_two_that_follow_python_calls_in_one_batch_are_refused_by_name() -> None:
    for other in (MemorySnapshot(schedule=SOON), Memray(schedule=SOON)):
        with pytest.raises(ValueError, match='both record batch 2') as caught:
            make_trainer(other, Memray(schedule=SOON), batches=6)
        assert type(other).__name__ in str(caught.value)
        assert 'follow Python calls' in str(caught.value) and 'share' not in str(caught.value)


def test_nothing_is_there_before_the_first_window() -> None:
    make_trainer(Memray(), batches=2).close()
    assert os.listdir() == []
