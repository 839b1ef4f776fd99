"""Schedules: every window is recorded once, whatever the batch sizes, units and resumptions."""

from __future__ import annotations

import math
from typing import Optional

import pytest
from composer.core import Time
from composer.profiler import cyclic_schedule
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from composer_memprof.schedule import every, on_ranks, window
from composer_memprof.schedule.clocks import TrainClock
from composer_memprof.schedule.constant import ALWAYS
from composer_memprof.schedule.driver import ScheduleDriver
from composer_memprof.schedule.overlap import first_common_batch
from composer_memprof.schedule.parsing import as_schedule
from composer_memprof.schedule.spans import parse_span
from tests.support.made_up_training import MadeUpRun


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


def test_a_common_batch_of_two_schedules_is_proved_or_unknown() -> None:
    assert first_common_batch(window('3ba', skip='1ba'), window('2ba', skip='2ba', warmup='1ba'), [0]) == 2
    assert first_common_batch(window('2ba'), window('2ba', skip='2ba'), [0]) is None
    assert first_common_batch(window('2ba', every='6ba'), window('2ba', skip='3ba', every='9ba'), [0]) == 12
    assert first_common_batch(window('2ba') & on_ranks(0), window('2ba') & on_ranks(1), [0, 1, 2]) is None
    assert first_common_batch(window('100sp'), window('2ba'), [0]) is None


def test_the_plain_reference_is_right_in_a_simple_case() -> None:
    recordings, seen = plain_reference([0, 2, 4, 6, 8, 10], 3, 2, 4, 0)
    assert recordings == [[2], [4]]
    assert seen == [[0], [1]]
    assert math.isclose(parse_span('0.25dur', 'skip').value, 0.25)
