"""Schedules: every window is recorded once, whatever the batch sizes, also in a resumed run."""

from __future__ import annotations

import datetime
import inspect
import json
import math
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest
from composer.core import Time, Timestamp
from composer.profiler import Profiler, ProfilerAction, cyclic_schedule
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from composer_memprof import HostRSS, TorchProfiler
from composer_memprof.schedule import every, on_local_ranks, on_ranks, window
from composer_memprof.schedule.clocks import TrainClock
from composer_memprof.schedule.constant import ALWAYS
from composer_memprof.schedule.driver import ScheduleDriver
from composer_memprof.schedule.overlap import first_common_batch
from composer_memprof.schedule.parsing import as_schedule, parse_schedule
from composer_memprof.schedule.spans import parse_span
from composer_memprof.schedule.windows import WindowSchedule
from tests.conftest import loader, make_trainer, train


class MadeUpRun:
    """A State that steps through batches of given sizes, ``epoch_length`` of them in an epoch."""

    def __init__(
        self, sizes: list[int], epoch_length: int = 10**9, start: int = 0, max_duration: str = '1000ba'
    ) -> None:
        self.sizes = sizes
        self.epoch_length = epoch_length
        self.start = start
        self.state: Any = SimpleNamespace(
            timestamp=self._timestamp(start),
            max_duration=Time.from_timestring(max_duration),
            dataloader_len=None,
            profiler=None,
        )

    def _timestamp(self, batch: int) -> Timestamp:
        done = sum(self.sizes[:batch])
        return Timestamp(
            epoch=batch // self.epoch_length,
            batch=batch,
            sample=done,
            token=done * 3,
            batch_in_epoch=batch % self.epoch_length,
            total_wct=datetime.timedelta(seconds=done),
        )

    def position(self, unit: str) -> float:
        return TrainClock(self.state).read(unit)

    def recordings(self, schedule: Any) -> list[list[int]]:
        """The batches of each recording, if a callback follows ``schedule`` through the events of Composer's Trainer."""
        self.state.timestamp = self._timestamp(self.start)
        driver = ScheduleDriver(schedule, TrainClock(self.state), self.state)
        recordings: list[list[int]] = []
        is_open = False
        for batch in range(self.start, len(self.sizes)):
            self.state.timestamp = self._timestamp(batch)
            decision = driver.before_batch()
            if is_open and not decision.joined:
                is_open = False
            if decision.active:
                if not is_open:
                    recordings.append([])
                is_open = True
                recordings[-1].append(batch)
            after = self._timestamp(batch + 1)
            # At BATCH_END the epoch stands still; it advances before EPOCH_END.
            self.state.timestamp = Timestamp(**{**after.state_dict(), 'epoch': batch // self.epoch_length})
            if is_open and driver.is_over():
                is_open = False
            self.state.timestamp = after
            if is_open and driver.is_over():
                is_open = False
        return recordings

    def boundaries(self, unit: str) -> list[float]:
        positions = []
        for batch in range(self.start, len(self.sizes) + 1):
            self.state.timestamp = self._timestamp(batch)
            positions.append(self.position(unit))
        self.state.timestamp = self._timestamp(self.start)
        return positions


def plain_reference(
    boundaries: list[float], start: float, length: float, cycle: Optional[float], repeat: int
) -> tuple[list[list[int]], list[list[int]]]:
    """By plain search, window by window: the batches of each recording, and the windows that it covers."""
    count = 1 if cycle is None else repeat or 10_000
    starts = [start + number * (cycle or 0) for number in range(count)]
    recordings: list[list[int]] = []
    seen: list[list[int]] = []
    batch, pending = 0, 0
    while batch < len(boundaries) - 1 and pending < count:
        due = [number for number in range(pending, count) if starts[number] <= boundaries[batch]]
        if not due:
            batch += 1
            continue
        end = starts[due[-1]] + length
        last = batch + 1
        while last < len(boundaries) - 1 and boundaries[last] < end:
            last += 1
        recordings.append(list(range(batch, last)))
        seen.append(due)
        batch, pending = last, due[-1] + 1
    return recordings, seen


@settings(max_examples=300, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    unit=st.sampled_from(['ba', 'sp', 'tok', 'sec', 'ep']),
    epoch_length=st.integers(1, 9),
    skip=st.integers(0, 60),
    warmup=st.integers(0, 30),
    active=st.integers(1, 60),
    gap=st.one_of(st.none(), st.integers(0, 60)),
    repeat=st.integers(0, 4),
    start=st.integers(0, 30),
)
def test_every_window_is_recorded_exactly_once_for_any_batch_sizes_units_and_resumption(
    sizes: list[int],
    unit: str,
    epoch_length: int,
    skip: int,
    warmup: int,
    active: int,
    gap: Optional[int],
    repeat: int,
    start: int,
) -> None:
    assume(start < len(sizes))
    run = MadeUpRun(sizes, epoch_length, start)
    cycle = None if gap is None else active + gap
    schedule = window(
        f'{active}{unit}',
        skip=f'{skip}{unit}',
        warmup=f'{warmup}{unit}',
        every=None if cycle is None else f'{cycle}{unit}',
        repeat=0 if cycle is None else repeat,
    )
    boundaries = run.boundaries(unit)
    expected, seen = plain_reference(boundaries, boundaries[0] + skip + warmup, active, cycle, repeat)
    recorded = run.recordings(schedule)
    assert [[batch - start for batch in recording] for recording in recorded] == expected
    # Each window whose time came is in one recording, and in one alone.
    numbers = [number for group in seen for number in group]
    assert numbers == list(range(len(numbers)))


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=5, max_size=60),
    units=st.tuples(*[st.sampled_from(['ba', 'sp', 'tok', 'sec'])] * 4),
    lengths=st.tuples(*[st.integers(1, 50)] * 4),
)
def test_mixed_units_never_lose_a_window_or_record_a_batch_twice(
    sizes: list[int], units: tuple[str, ...], lengths: tuple[int, ...]
) -> None:
    skip, warmup, active, cycle = (f'{length}{unit}' for length, unit in zip(lengths, units))
    assume(units[2] != units[3] or lengths[3] >= lengths[2])
    run = MadeUpRun(sizes)
    recordings = run.recordings(window(active, skip=skip, warmup=warmup, every=cycle))
    batches = [batch for recording in recordings for batch in recording]
    assert batches == sorted(set(batches))
    assert all(recording == list(range(recording[0], recording[-1] + 1)) for recording in recordings)
    boundaries = run.boundaries(units[0])
    due = next((i for i, position in enumerate(boundaries[:-1]) if position >= lengths[0]), None)
    warm = None
    if due is not None:
        positions = run.boundaries(units[1])
        target = lengths[0] if units[0] == units[1] else positions[due]
        warm = next((i for i in range(due, len(sizes)) if positions[i] >= target + lengths[1]), None)
    assert [recording[0] for recording in recordings[:1]] == ([] if warm is None else [warm])


def test_an_interval_in_samples_that_is_no_multiple_of_the_batch_closes_past_its_end() -> None:
    run = MadeUpRun([32] * 12)
    assert run.recordings(window('100sp', skip='1ba')) == [[1, 2, 3, 4]]


def test_a_resumed_run_counts_from_where_it_started() -> None:
    run = MadeUpRun([8] * 520, start=500)
    assert run.recordings(window('3ba', skip='1ba')) == [[501, 502, 503]]


def test_adjacent_windows_leave_no_gap() -> None:
    assert MadeUpRun([8] * 7).recordings(window('2ba', every='2ba')) == [[0, 1], [2, 3], [4, 5], [6]]


def test_a_window_of_an_epoch_ends_with_it() -> None:
    run = MadeUpRun([8] * 12, epoch_length=4)
    assert run.recordings(window('1ep', skip='1ep')) == [[4, 5, 6, 7]]


def test_wall_clock_windows_come_every_ten_minutes() -> None:
    run = MadeUpRun([60] * 40)  # a batch a minute
    assert run.recordings(every('10m')) == [[0], [10], [20], [30]]
    assert [r[0] for r in run.recordings(every('10m', active='2ba'))] == [0, 10, 20, 30]


def test_a_fraction_of_training_is_resolved_at_the_start() -> None:
    run = MadeUpRun([8] * 40, max_duration='40ba')
    assert run.recordings(window('0.1dur', skip='0.5dur')) == [[20, 21, 22, 23]]
    epochs = MadeUpRun([8] * 40, epoch_length=10, max_duration='4ep')
    epochs.state.dataloader_len = Time(10, 'ba')
    assert epochs.recordings(window('0.1dur', skip='0.5dur')) == [[20, 21, 22, 23]]


def test_combinations_are_sets_of_batches() -> None:
    run = MadeUpRun([8] * 12)
    a, b = window('4ba', skip='2ba'), window('4ba', skip='4ba')
    assert run.recordings(a & b) == [[4, 5]]
    assert run.recordings(a | b) == [[2, 3, 4, 5, 6, 7]]
    assert run.recordings(~a) == [[0, 1], [6, 7, 8, 9, 10, 11]]
    assert run.recordings(a & ~b) == [[2, 3]]
    assert run.recordings(a & on_ranks(0)) == [[2, 3, 4, 5]]
    assert run.recordings(a | window('2ba', skip='6ba')) == [[2, 3, 4, 5], [6, 7]]  # touching, not overlapping
    assert run.recordings(every('3ba') & on_ranks(0, 1)) == [[0], [3], [6], [9]]
    assert run.recordings(ALWAYS & ~window('2ba', skip='3ba')) == [[0, 1, 2], list(range(5, 12))]


def test_the_warm_up_of_a_combination_comes_before_the_batches_that_are_left() -> None:
    run = MadeUpRun([8] * 12)
    schedule = window('4ba', skip='2ba', warmup='1ba') & window('6ba', skip='4ba')  # active: 4, 5, 6
    driver = ScheduleDriver(schedule, TrainClock(run.state), run.state)
    decisions = []
    for batch in range(8):
        run.state.timestamp = run._timestamp(batch)
        decision = driver.before_batch()
        decisions.append('A' if decision.active else 'W' if decision.warmup else '.')
    assert ''.join(decisions) == '...WAAA.'


def test_a_function_of_the_state_is_a_schedule_and_combines() -> None:
    run = MadeUpRun([8] * 12, epoch_length=12)
    run.state.dataloader_len = 12
    cyclic = cyclic_schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=2)
    assert run.recordings(as_schedule(cyclic)) == [[3, 4], [7, 8]]
    assert run.recordings(on_ranks(0) & cyclic) == [[3, 4], [7, 8]]
    assert run.recordings(cyclic & on_ranks(0)) == [[3, 4], [7, 8]]


@pytest.mark.parametrize('part', [0.07, 0.14, 0.28, 0.55, 0.56, 0.57, 0.29])
def test_a_fraction_of_training_is_no_batch_late(part: float) -> None:
    run = MadeUpRun([8] * 100, max_duration='100ba')
    assert run.recordings(window('1ba', skip=f'{part}dur')) == [[round(part * 100)]]


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


@pytest.mark.parametrize(
    ('text', 'seconds'), [('10m', 600), ('1h30m', 5400), ('90m', 5400), ('600sec', 600), ('45s', 45), ('2h', 7200)]
)
def test_wall_clock_lengths_are_read(text: str, seconds: int) -> None:
    span = parse_span(text, 'every')
    assert (span.value, span.unit) == (seconds, 'sec')


@pytest.mark.parametrize(
    ('make', 'words'),
    [
        (lambda: window('0ba'), ['active', "'0ba'"]),
        (lambda: window('-3ba'), ['active', "'-3ba'", 'negative']),
        (lambda: window('3bar'), ["'3bar'", "'ba'"]),
        (lambda: window('1.5ba'), ["'1.5ba'"]),
        (lambda: window('3ba', every='2ba'), ['every', 'overlap']),
        (lambda: window('3ba', every='0ba'), ['every']),
        (lambda: window('3ba', repeat=2), ['repeat', 'every']),
        (lambda: window('3ba', every='9ba', repeat=-1), ['repeat must be', 'not -1']),
        (lambda: on_ranks(), ['on_ranks']),
        (lambda: on_ranks(-1), ['on_ranks']),
        (lambda: on_ranks(0) & on_ranks(1), ['&']),
        (lambda: on_local_ranks(), ['on_local_ranks']),
        (lambda: on_local_ranks(-1), ['on_local_ranks']),
        (lambda: parse_schedule({'active': '3ba', 'local_ranks': ['x']}), ['schedule.local_ranks']),
        (lambda: window('2ba') & window('2ba', skip='5ba'), ['&']),
        (lambda: window('2ba', every='4ba') & window('2ba', skip='2ba', every='4ba'), ['&']),
        (lambda: parse_schedule({'activ': '3ba'}), ['schedule.activ', "'active'"]),
        (lambda: parse_schedule({'skip': '3ba'}), ['schedule', 'active']),
        (lambda: parse_schedule({'active': '3ba', 'stages': ['evla']}), ['schedule.stages', "'evla'", "'eval'"]),
        (lambda: parse_schedule({'active': '3ba', 'ranks': ['x']}), ['schedule.ranks']),
        (lambda: parse_schedule('3ba'), ['schedule', "'3ba'"]),
    ],
)
def test_a_mistake_is_one_line_that_names_it(make: Any, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    message = str(caught.value)
    assert '\n' not in message
    assert all(word in message for word in words), message


def test_a_common_batch_of_two_schedules_is_proved_or_unknown() -> None:
    assert first_common_batch(window('3ba', skip='1ba'), window('2ba', skip='2ba', warmup='1ba'), [0]) == 2
    assert first_common_batch(window('2ba'), window('2ba', skip='2ba'), [0]) is None
    assert first_common_batch(window('2ba', every='6ba'), window('2ba', skip='3ba', every='9ba'), [0]) == 12
    assert first_common_batch(window('2ba') & on_ranks(0), window('2ba') & on_ranks(1), [0, 1, 2]) is None
    assert first_common_batch(window('100sp'), window('2ba'), [0]) is None


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that a launcher gives to rank 5 of two nodes with four ranks each."""
    for name, value in {'RANK': 5, 'WORLD_SIZE': 8, 'LOCAL_RANK': 1, 'LOCAL_WORLD_SIZE': 4, 'NODE_RANK': 1}.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.usefixtures('two_nodes')
def test_local_ranks_are_those_of_each_node() -> None:
    schedule = window('2ba') & on_local_ranks(1)
    assert [rank for rank in range(8) if schedule.may_run_on(rank)] == [1, 5]
    assert [rank for rank in range(8) if (~on_local_ranks(1)).may_run_on(rank)] == [0, 2, 3, 4, 6, 7]
    assert parse_schedule({'active': '2ba', 'local_ranks': [1]}).schedule == schedule
    assert MadeUpRun([8] * 6).recordings(schedule) == [[0, 1]], 'this is local rank 1'
    assert MadeUpRun([8] * 6).recordings(window('2ba') & on_local_ranks(0, 2)) == []


def test_a_process_goes_by_its_own_local_rank_where_nodes_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {'RANK': 5, 'WORLD_SIZE': 6, 'LOCAL_RANK': 0, 'LOCAL_WORLD_SIZE': 1}.items():
        monkeypatch.setenv(name, str(value))
    assert MadeUpRun([8] * 6).recordings(window('2ba') & on_local_ranks(0)) == [[0, 1]]


def test_local_ranks_that_a_node_lacks_are_refused_by_the_run_and_not_by_a_proof() -> None:
    assert window('1ba') & ~on_local_ranks(0), 'as ~on_ranks(0)'
    for schedule in (window('1ba') & on_local_ranks(3), window('1ba') & ~on_local_ranks(3)):
        with pytest.raises(ValueError, match=r'local_ranks=\[3\] are beyond this node'):
            make_trainer(HostRSS(schedule=schedule))
    with pytest.raises(ValueError, match='no batch in common'):
        on_local_ranks(0) & ~on_local_ranks(0)


@pytest.mark.usefixtures('two_nodes')
def test_what_is_proved_of_ranks_holds_for_local_ranks() -> None:
    both = (on_ranks(1) & on_local_ranks(1), ~on_ranks(1) & on_local_ranks(1), on_ranks(6) & on_local_ranks(2))
    assert [[rank for rank in range(8) if schedule.may_run_on(rank)] for schedule in both[::2]] == [[1], [6]]
    with pytest.raises(ValueError, match='no batch in common'):
        on_ranks(6) & on_local_ranks(1)
    with pytest.raises(ValueError, match='no batch in common'):
        window('2ba') & on_local_ranks(0) & on_local_ranks(1)


def test_callbacks_on_different_local_ranks_do_not_clash_and_ranks_that_no_node_has_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match=r'^HostRSS: local_ranks=\[1, 3\] are beyond this node, .* 0 to 0$'):
        make_trainer(HostRSS(schedule={'active': '2ba', 'local_ranks': [0, 1, 3]}))
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '2')
    make_trainer(
        TorchProfiler(schedule={'active': '2ba', 'local_ranks': [0]}),
        TorchProfiler(schedule={'active': '3ba', 'local_ranks': [1]}),
    ).close()
    with pytest.raises(ValueError, match='would both record batch 0'):
        make_trainer(
            TorchProfiler(schedule={'active': '2ba', 'local_ranks': [0, 1]}),
            TorchProfiler(schedule={'active': '3ba', 'local_ranks': [1]}),
        )


def test_the_plain_reference_is_right_in_a_simple_case() -> None:
    recordings, seen = plain_reference([0, 2, 4, 6, 8, 10], 3, 2, 4, 0)
    assert recordings == [[2], [4]]
    assert seen == [[0], [1]]
    assert math.isclose(parse_span('0.25dur', 'skip').value, 0.25)


def test_a_mapping_has_a_key_for_every_field_of_a_window() -> None:
    assert {field.name for field in fields(WindowSchedule)} == set(inspect.signature(window).parameters)
