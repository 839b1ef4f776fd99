"""The report on a run: what happened, in sentences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from composer_memprof import FSDPMemTracker, HostRSS, MemorySnapshot, StepTimes
from composer_memprof.analysis.run_report.report import compared_paths, report_on_paths
from composer_memprof.analysis.snapshot.loading import SnapshotError
from tests.conftest import train
from tests.support.made_up_runs import MIB, run_of, snapshot_summary, write_files
from tests.support.run_reports import reported, said


def test_a_failure_comes_first_and_that_of_memory_before_all_others() -> None:
    folder = run_of(Path('run'), 3, rank2=2.0)
    asked = {
        'device': 0,
        'requested': 2 * MIB,
        'allocated': 70 * MIB,
        'reserved': 80 * MIB,
        'free': MIB,
        'total': 99 * MIB,
    }
    oom = {**asked, 'message': 'no memory', 'events': 3, 'batch': 4, 'phase': 'forward', 'asked': ['train.py:7 step']}
    for rank, failed in ((0, {'error': 'RuntimeError: another rank'}), (1, {'error': 'OutOfMemoryError', 'oom': oom})):
        name = f'rank{rank}.4.memory_snapshot.oom.summary.json'
        write_files(folder, rank, {'memory_snapshot.summary': (name, snapshot_summary(rank, **failed))}, batch=4)
    report = reported(folder)
    assert said(report)[0] == (
        'Rank 1 ran out of memory in batch 4, forward, asked for 2.0 MiB by train.py:7 step. The device has '
        '99.0 MiB: 80.0 MiB reserved by torch (70.0 MiB in use), 18.0 MiB used outside of torch (CUDA context, libraries, '
        'other processes), 1.0 MiB free. Rank 0 failed too.'
    )


def test_growth_of_a_worker_and_waiting_for_data_are_said_and_lead_to_advice() -> None:
    folder = run_of(Path('run'), 2)
    sample = {'event': 'sample', 'time': 1.0, 'batch': 3, 'phase': 'forward', 'rss': 50 * MIB, 'cgroup_limit': 99 * MIB}
    trend = {'per_batch': 3.0 * MIB, 'low': 1.0, 'high': 5.0, 'clear': True}
    end = {'event': 'summary', 'time': 2.0, 'batch': 9, 'charged': {}, 'suspect': {'name': 'worker 1', 'growth': trend}}
    lines = '\n'.join(map(json.dumps, [sample, {**sample, 'cgroup_usage': 98 * MIB}, end])) + '\n{"event": "sam'
    seconds = {'total': {'p50': 0.5}, 'dataloader': {'p50': 0.2}}
    times = {'batches': 9, 'seconds': seconds, 'share': {'dataloader': 0.4, 'forward': 0.6}}
    write_files(folder, 1, {'host_rss': ('h.jsonl', lines), 'step_times.summary': ('s.json', times)}, status='open')
    report = reported(folder)
    assert said(report, 'growth') == ['Host memory grows on rank 1, in worker 1, by 3.0 MiB a batch.']
    (host,) = said(report, 'host')
    assert host.endswith('the job used 98.0 MiB of the 99.0 MiB at which it is killed.')
    assert said(report, 'speed') == [
        'Training waits for data for 40 % of its time on rank 1: 200.0 ms of a batch of 500.0 ms.',
        'The median batch takes 500.0 ms.',
    ]
    assert '2 files are still open' in said(report, 'files')[0]
    todo = [advice.what for advice in report.advice]
    assert 'Look in worker 1, on rank 1, for objects that are kept from batch to batch.' in todo
    assert 'Load data in processes of their own, ahead of the training.' in todo


def test_the_peak_is_said_from_summaries_alone() -> None:
    folder = run_of(Path('run'), 3, rank2=2.0)
    summary = snapshot_summary(2, 2.0)
    summary['devices'][0] |= {
        'memory': 200 * MIB,
        'holders': [{'bytes': 80 * MIB, 'blocks': 4, 'category': 'activation', 'at': ['model.py:7 up', 'x.py:1 y']}],
    }
    write_files(folder, 2, {'memory_snapshot.summary': ('rank2.9.memory_snapshot.summary.json', summary)})
    assert said(reported(folder), 'peak')[0] == (
        'The peak of rank 2 is 180.0 MiB of 200.0 MiB (90 %) allocated in batch 8, backward. Activation leads with '
        '120.0 MiB (67 %): 80.0 MiB by model.py:7 up.'
    )


def test_of_two_runs_what_changed_comes_first() -> None:
    before, after = run_of(Path('before'), 3), run_of(Path('after'), 3, rank0=2.0, rank1=2.0, rank2=2.0)
    paths = [(before, 'before'), (after, 's3://runs/after')]
    first, second, *_ = said(report_on_paths(paths))
    assert first == (
        'Against before: its peak of allocated memory is 180.0 MiB, 1.5 times 120.0 MiB. What changed most: activation '
        '(60.0 MiB to 120.0 MiB), blocks.*.up (40.0 MiB to 80.0 MiB).'
    )
    assert second.startswith("Its peak of the model's memory is 200.0 MiB")
    same = said(report_on_paths([(before, 'a'), (before, 'b')]), 'change')
    assert same == ['Against a: no total changed.']
    with pytest.raises(SnapshotError, match='compares two runs'):
        report_on_paths([(before, 'a'), (after, 'b'), (before, 'c')])


def test_a_category_that_only_one_run_has_is_what_changed_most() -> None:
    before, after = run_of(Path('before'), 1), run_of(Path('after'), 0)
    summary = snapshot_summary(0)
    (device,) = summary['devices']
    device['categories']['gradient'] = 500 * MIB
    device['peak']['bytes'] += 500 * MIB
    write_files(after, 0, {'memory_snapshot.summary': ('rank0.9.memory_snapshot.summary.json', summary)})
    assert (
        'What changed most: gradient (0 B to 500.0 MiB)'
        in said(report_on_paths([(before, 'a'), (after, 'b')]), 'change')[0]
    )


def test_a_run_that_was_killed_is_said_to_be() -> None:
    folder = run_of(Path('run'), 1)
    write_files(folder, 0, {'host_rss': ('h.jsonl', '')}, status='open')
    killed = 'were still open, and no process here writes them: the run was killed, or goes on elsewhere.'
    assert said(reported(folder))[0] == f"Rank 0's files {killed}"
    for rank in range(3):
        write_files(run_of(Path('more'), 0), rank, {'host_rss': (f'h{rank}.jsonl', '')}, status='open')
    assert said(reported(Path('more')))[0] == f'The files of all ranks {killed}'
    write_files(Path('more'), 1, {'host_rss': ('h1.jsonl', '')})
    assert said(reported(Path('more')))[0] == f'The files of ranks 0, 2 {killed}'


def test_two_runs_of_different_callbacks_are_compared_by_what_both_have() -> None:
    train(MemorySnapshot(), StepTimes(), batches=8)
    Path('test-run').rename('before')
    train(HostRSS(interval=0.005), FSDPMemTracker(), batches=8)
    report = compared_paths((Path('before'), 'before'), (Path('test-run'), 'after'))
    memory, time, kinds = said(report, 'change')
    assert 'the peak of memory is' in memory and 'by fsdp_mem_tracker' in memory and 'by memory_snapshot' in memory
    assert 'a batch takes' in time and 'ms by host_rss' in time and 'ms there by step_times' in time
    assert 'those of memory_snapshot and step_times, this one those of fsdp_mem_tracker and host_rss' in kinds
