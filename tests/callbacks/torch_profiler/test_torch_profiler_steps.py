"""TorchProfiler: which batches a trace holds, in which steps."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from composer.profiler import Profiler, ProfilerAction, cyclic_schedule

from composer_memprof import MemorySnapshot, TorchProfiler
from composer_memprof.analysis.memory.summary import read_summary
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.messages import MemprofWarning
from composer_memprof.schedule import window
from tests.conftest import loader, train
from tests.support.recordings.traces import RUN, SOON, trace_events


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
