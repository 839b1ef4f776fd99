"""The cause of what is wrong with a run, in the first sentence, and the change that ends it, first."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

from composer_memprof.analysis.run_report.advice.of_causes import against
from composer_memprof.analysis.run_report.causes.device_memory import leaks_between_windows
from composer_memprof.analysis.run_report.causes.host_memory import host_full
from composer_memprof.analysis.run_report.causes.kinds import TimeTaken, Waiting, leak_cost
from composer_memprof.analysis.run_report.causes.speed import slow_parts, waiting_share
from composer_memprof.analysis.run_report.readers import BetweenWindowsFile, LoaderSettings, StepTimesFile
from composer_memprof.analysis.typed_json import from_plain
from composer_memprof.recorders.host.summary import HostSeries, HostSummary
from composer_memprof.report.html.run.charts.module_tree import module_tree
from composer_memprof.report.text.sentences.run_verdict_json import report_dict
from tests.support.made_up_runs import MIB, run_of, snapshot_summary, write_files
from tests.support.run_reports import reported, said


def step_times(wait: float, own: Optional[float] = None, **more: Any) -> dict[str, Any]:
    """A summary of batches that take a second each; the first one waits ten seconds for its workers."""
    parts = {'total': 1.0, 'dataloader': wait, **({} if own is None else {'data': own})}
    seconds = {name: {'mean': (value * 9 + 10) / 10, 'max': 10.0, 'p50': value} for name, value in parts.items()}
    return {'batches': 10, 'seconds': seconds, 'share': {'dataloader': wait}, **more}


def of_step_times(**ranks: dict[str, Any]) -> Path:
    folder = run_of(Path('run'), len(ranks))
    for rank, times in enumerate(ranks.values()):
        write_files(folder, rank, {'step_times.summary': (f's{rank}.json', times)})
    return folder


@pytest.mark.parametrize(
    ('loader', 'change'),
    [
        (None, 'Load data in processes of their own, ahead of the training.'),
        (
            {'num_workers': 0, 'prefetch_factor': None},
            'Give the DataLoader workers, such as num_workers=4: with 0 the training itself loads each batch.',
        ),
        (
            {'num_workers': 2, 'prefetch_factor': 2},
            "Raise the DataLoader's num_workers (2), or its prefetch_factor (2), or do less work for each sample.",
        ),
    ],
)
def test_a_slow_loader_comes_before_the_peak_with_a_change_that_fits_its_settings(
    loader: Optional[dict[str, Any]], change: str
) -> None:
    report = reported(of_step_times(only=step_times(0.75, 0.7, loader=loader)))
    assert said(report)[0] == 'Training waits for data for 70 % of its time: 700.0 ms of a batch of 1.00 s.'
    assert report.advice[0].what == change


def test_the_start_of_the_workers_and_the_wait_for_other_ranks_are_no_slow_loader() -> None:
    assert reported(of_step_times(only=step_times(0.02))).causes == []
    others = reported(of_step_times(fast=step_times(0.6, 0.01), slow=step_times(0.01, 0.01)))
    assert others.causes == []
    slow = reported(of_step_times(fast=step_times(0.6, 0.01), slow=step_times(0.6, 0.5)))
    assert [cause.rank for cause in slow.causes] == [1]


def leaking(rank: int, per_batch: int, **more: Any) -> dict[str, Any]:
    summary = snapshot_summary(rank, **more)
    growing = {'per_batch': per_batch, 'at': ['lib.py:27 remember', 'train.py:9 main'], 'total': 3 * per_batch}
    summary['devices'][0] |= {'memory': 80 << 30, 'allocated_at_end': 10 << 30, 'growing': [growing]}
    return summary


def with_snapshot(summary: dict[str, Any]) -> Path:
    folder = Path('run')
    folder.mkdir()
    write_files(folder, 0, {'memory_snapshot.summary': ('rank0.9.memory_snapshot.summary.json', summary)})
    return folder


def test_a_leak_comes_first_with_its_line_and_when_the_device_is_full() -> None:
    report = reported(with_snapshot(leaking(0, 250 * MIB)))
    assert said(report)[0] == (
        'Memory leaks: what lib.py:27 remember, called from train.py:9 main, allocates is kept, 250.0 MiB more in each batch, '
        '750.0 MiB by now. The device is full after some 286 more.'
    )
    assert report.advice[0].what == 'Stop keeping what lib.py:27 remember allocates.'
    assert report.advice[0].frees == 750 * MIB
    (cause,) = report_dict(report)['causes']
    assert (cause['kind'], cause['rank'], cause['per_batch']) == ('device_leak', 0, 250 * MIB)


@pytest.mark.parametrize(('held', 'is_first'), [(800 * MIB, True), (20 << 30, False)], ids=['most', 'a small part'])
def test_memory_that_ran_out_because_of_a_leak_says_so_first(held: int, is_first: bool) -> None:
    keys = ('device', 'requested', 'allocated', 'reserved', 'free', 'total', 'message', 'events', 'batch')
    oom = {**dict.fromkeys(keys), 'phase': 'forward', 'asked': ['model.py:7 up']}
    summary = leaking(0, 250 * MIB, error='OutOfMemoryError', oom=oom)
    summary['devices'][0]['at_failure'] = {'bytes': held, 'batch': 9, 'phase': 'forward', 'categories': {}}
    report = reported(with_snapshot(summary))
    because = (
        'Memory ran out because of a leak: what lib.py:27 remember, called from train.py:9 main, allocates is kept'
    )
    assert said(report)[0].startswith(because) == is_first
    assert said(report)[is_first].startswith('Rank 0 ran out of memory')
    assert (report.advice[:1] != [] and report.advice[0].what.startswith('Stop keeping')) == is_first


@pytest.mark.parametrize(
    ('per_batch', 'memory', 'matters'),
    [(4, 1 << 30, False), (512, 80 << 30, False), (1 << 20, 80 << 30, True), (10 << 10, 1 << 30, True)],
)
def test_what_never_fills_the_memory_is_no_leak(per_batch: int, memory: int, matters: bool) -> None:
    assert (leak_cost(per_batch, memory) > 0) == matters


def test_forged_figures_are_no_causes() -> None:
    keys = ('device', 'requested', 'allocated', 'reserved', 'free', 'total', 'message', 'events', 'batch')
    summary = leaking(0, 0, error='x', oom={**dict.fromkeys(keys), 'phase': '', 'asked': []})
    summary['devices'][0] |= {'memory': 0, 'peak': {**summary['devices'][0]['peak'], 'bytes': 0}}
    folder = with_snapshot(summary)
    times = step_times(0.5)
    write_files(folder, 0, {'step_times.summary': ('s.json', {**times, 'batches': 10**400})})
    assert reported(folder).causes == []


@pytest.mark.parametrize(
    ('sizes', 'is_full'), [([500, 600, 700, 800], True), ([500, 500, 800, 800], False), ([950], True)]
)
def test_a_host_that_is_full_between_two_samples_killed_the_rank_too(sizes: list[int], is_full: bool) -> None:
    series = HostSeries(
        seconds=[0.5 * number for number in range(len(sizes))],
        rss=sizes,
        children_rss=[0 for _ in sizes],
        cgroup_usage=list(sizes),
    )
    summary = HostSummary(len(sizes), series, rss_peak=max(sizes), usage_peak=max(sizes), limit=1000)
    assert bool(list(host_full({0: summary}, [0]))) is is_full


def between(**more: Any) -> BetweenWindowsFile:
    """16 MiB more in 16 batches, half of it in the later half of them."""
    given = {'kept_by': 'A.seen, a list of 12', 'more': 9, 'bytes': 16 << 20, 'grown': 16 << 20, 'size': 1 << 30}
    return BetweenWindowsFile(**{**given, 'grown_lately': 8 << 20, 'begin': 4, 'end': 20, 'on_host': True, **more})


def test_growth_between_windows_is_a_leak_while_it_goes_on() -> None:
    (leak,) = leaks_between_windows({0: between(), 1: between(bytes=32 << 20, grown=32 << 20, grown_lately=16 << 20)})
    assert (leak.rank, leak.per_batch, leak.kept_by) == (1, 2 << 20, 'A.seen, a list of 12')
    (leak,) = leaks_between_windows({0: between(more=12)})
    assert (leak.per_batch, leak.begin) == ((16 << 20) / 20, 0)
    on_gpu = {'on_host': False, 'memory': 1 << 34, 'kept_by': '', 'bytes': 0}
    (leak,) = leaks_between_windows({0: between(**on_gpu, clear=True)})
    assert leak.grown == 16 << 20


@pytest.mark.parametrize(
    'more',
    [
        {'grown_lately': 1 << 20},
        {'end': 8},
        {'kept_by': ''},
        {'kept_by': '', 'on_host': False, 'memory': 1 << 34},
        {'kept_by': 'A.seen, a deque of at most 40'},
        {'begin': 20, 'end': 4},
    ],
)
def test_what_stops_or_fills_up_or_is_too_short_to_tell_is_no_leak_between_windows(more: dict[str, Any]) -> None:
    assert not list(leaks_between_windows({0: between(**more)}))


def test_the_long_start_of_workers_is_no_wait_in_every_batch() -> None:
    starts = {'first': 20.0, 'count': 2, 'seconds': 40.0, 'others': 0.0}
    seconds = {
        'total': {'mean': 0.11, 'p50': 0.01, 'max': 20.01},
        'data': {'mean': 0.1, 'p50': 0.001, 'max': 20.0},
        'dataloader': {'mean': 0.1, 'p50': 0.001, 'max': 20.0},
    }
    loader = {'num_workers': 2, 'prefetch_factor': 2}
    file = {'batches': 600, 'seconds': seconds, 'share': {'dataloader': 0.9}, 'loader': loader, 'epoch_starts': starts}
    each, once = (from_plain(StepTimesFile, {**file, 'epoch_starts': given}) for given in (starts, {'first': 60.0}))
    (found,) = slow_parts({0: each})
    assert isinstance(found, TimeTaken) and (found.phase, found.first) == ('workers', 20.0)
    assert not list(slow_parts({0: once}))
    assert waiting_share(once) < 0.02
    kept = from_plain(StepTimesFile, {**file, 'loader': {**loader, 'persistent_workers': True}})
    assert not list(slow_parts({0: kept}))


def test_code_for_more_workers_has_more_than_there_are_and_none_where_each_copies_the_data() -> None:
    waiting = Waiting(0, 0.5, 0.1, 0.2, LoaderSettings(8, 2), '')
    assert 'num_workers=16' in against(waiting, []).code
    few = against(waiting, [], copies=True)
    assert few.what.startswith('Do less work') and not few.code


def test_a_long_label_of_an_area_has_several_lines() -> None:
    outside = {('temporary', 'train.py:12 step: loss = criterion(model(batch), target)'): 8}
    chart = module_tree('modules', 'Memory', 'What there is', {'net': 8}, 'bytes', outside)
    lines = [shown.split('<br>') for _, _, shown in chart.data[0]['customdata']]
    assert ['train.py:12 step: loss =', 'criterion(model(batch),', 'target)'] in lines
