"""Schedules as the schedule of Composer's own profiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from composer.core import Timestamp
from composer.profiler import Profiler, ProfilerAction, cyclic_schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_memprof.schedule import every, window
from tests.conftest import loader, train
from tests.support.made_up_training import MadeUpRun


@pytest.mark.parametrize(
    'schedule', [window('1ep', skip='1ep'), window('32sp', skip='32sp'), window('4ba', skip='4ba')]
)
def test_as_a_prof_schedule_a_window_comes_once_over_several_epochs(schedule: Any) -> None:
    run = MadeUpRun([8] * 24, epoch_length=4)
    active = []
    for batch in range(24):
        # Composer asks at the end of a batch, then again once the epoch has advanced.
        for epoch in ((batch - 1) // 4, batch // 4) if batch else (0,):
            run.state.timestamp = Timestamp(**{**run._timestamp(batch).state_dict(), 'epoch': epoch})
            action = schedule(run.state)
        if action != ProfilerAction.SKIP:
            active.append(batch)
    assert active[:4] == [4, 5, 6, 7]
    assert len(active) <= 5


@pytest.mark.parametrize(
    ('schedule', 'traces'),
    [
        (window('1ep', skip='1ep'), {'rank0.6': [3, 4, 5]}),
        (window('1ep', every='1ep'), {'rank0.3': [0, 1, 2], 'rank0.6': [3, 4, 5], 'rank0.9': [6, 7, 8]}),
        (every('1ep'), {'rank0.1': [0], 'rank0.4': [3], 'rank0.7': [6]}),
    ],
)
def test_composers_own_profiler_records_whole_epochs(schedule: Any, traces: dict[str, list[int]]) -> None:
    assert steps_of_composers_profiler(schedule, batches=3) == traces


def test_composers_own_profiler_records_whole_epochs_of_one_batch() -> None:
    assert steps_of_composers_profiler(window('1ep', skip='1ep'), batches=1) == {'rank0.2': [1]}


def steps_of_composers_profiler(schedule: Any, batches: int) -> dict[str, list[int]]:
    """The batches in each trace of a training of three epochs."""
    profiler = Profiler(schedule=schedule, trace_handlers=[], torch_prof_with_flops=False)
    more = {'eval_dataloader': loader(1), 'eval_interval': '1ba'}  # whose length is not the epoch's
    train(batches=batches, max_duration='3ep', profiler=profiler, **more)
    return {
        path.name.removesuffix('.pt.trace.json'): sorted(
            int(event['name'].partition('#')[2])
            for event in json.loads(path.read_text())['traceEvents']
            if event['name'].startswith('ProfilerStep#') and event.get('cat') == 'user_annotation'
        )
        for path in Path('test-run').rglob('*.pt.trace.json')
    }


def test_as_a_prof_schedule_a_resumed_run_skips_windows_that_are_over() -> None:
    run = MadeUpRun([8] * 60, start=40)
    run.state.timestamp = run._timestamp(40)
    assert window('16sp', skip='80sp')(run.state) == ProfilerAction.SKIP
    assert window('16sp', skip='320sp')(run.state) == ProfilerAction.ACTIVE


@settings(max_examples=100, deadline=None)
@given(
    skip_first=st.integers(0, 5),
    wait=st.integers(0, 4),
    warmup=st.integers(0, 3),
    active=st.integers(1, 4),
    repeat=st.integers(0, 3),
)
def test_as_a_prof_schedule_it_agrees_with_composers_in_batches(
    skip_first: int, wait: int, warmup: int, active: int, repeat: int
) -> None:
    composers = cyclic_schedule(skip_first, wait, warmup, active, repeat)
    cycle = wait + warmup + active
    ours = window(f'{active}ba', skip=f'{skip_first + wait}ba', warmup=f'{warmup}ba', every=f'{cycle}ba', repeat=repeat)
    run = MadeUpRun([8] * 40)
    for batch in [0, 0, *range(40), 7, 23]:  # asked often, at INIT, and after jumps
        run.state.timestamp = run._timestamp(batch)
        assert ours(run.state) == composers(run.state), batch


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=8, max_size=40), skip=st.integers(0, 80), active=st.integers(1, 80))
def test_as_a_prof_schedule_in_samples_each_window_is_saved_at_most_one_batch_late(
    sizes: list[int], skip: int, active: int
) -> None:
    run = MadeUpRun([*sizes, 8, 8])
    schedule = window(f'{active}sp', skip=f'{skip}sp')
    actions = []
    for batch in range(len(run.sizes)):
        run.state.timestamp = run._timestamp(batch)
        actions.append(schedule(run.state))
    expected = [batch for recording in run.recordings(schedule) for batch in recording]
    on = [i for i, action in enumerate(actions) if action in (ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE)]
    if expected and expected[-1] + 1 < len(actions):
        assert on in (expected, [*expected, expected[-1] + 1])
        assert [action for action in actions if action == ProfilerAction.ACTIVE_AND_SAVE] != []
        assert actions[on[-1]] == ProfilerAction.ACTIVE_AND_SAVE
