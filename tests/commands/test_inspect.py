"""``composer-memprof inspect``: which snapshot of a run it shows, what it shows first, and its options."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from composer_memprof import MemorySnapshot
from composer_memprof.analysis.memory.blocks.time_span import TimeSpan
from composer_memprof.analysis.memory.snapshot_report import SnapshotReport, report_on
from composer_memprof.analysis.run import rank_list, snapshot_to_show
from composer_memprof.analysis.snapshot.loading import SnapshotError, read_snapshot
from composer_memprof.report.text.terminal.snapshot_tables import report_text
from tests.conftest import child_environment, train
from tests.support.processes import warm_python
from tests.support.recordings.snapshots import FRAME, event, freed, listed, plain, saved, segment

MIB = 1 << 20
SMALL = plain(event('alloc', 512, 100), phases=[[0, 1, 'forward']], device='cpu')


def inspect(*arguments: object) -> subprocess.CompletedProcess[str]:
    return warm_python.run(
        [sys.executable, '-m', 'composer_memprof.cli', 'inspect', *map(str, arguments)],
        capture_output=True,
        text=True,
        env=child_environment(COLUMNS='80'),
    )


def answer(content: Any, span: TimeSpan | None = None) -> SnapshotReport:
    return report_on(read_snapshot(content), span)


def printed(report: SnapshotReport, width: int = 80) -> str:
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(report_text(report))
    return console.export_text()


# -- which of a run's snapshots, and which ranks there are ----------------------------------------------------------


def test_of_a_run_the_rank_that_ran_out_of_memory_is_shown_and_why() -> None:
    for rank in (0, 1, 2, 3, 7):
        listed('run', f'rank{rank}.9.pickle', SMALL, rank=rank, batch=9)
    assert snapshot_to_show(Path('run')).rank == 0
    listed('run', 'rank1.8.exception.pickle', SMALL, rank=1, batch=8)  # ended because rank 2 did
    for rank, name, when in ((3, 'rank3.5.oom.pickle', 2000), (2, 'rank2.5.oom.pickle', 1000)):
        listed('run', name, SMALL, rank=rank, batch=5)
        os.utime(Path('run/torch_traces') / name, (when, when))
    chosen = snapshot_to_show(Path('run'))
    assert (chosen.path.name, chosen.rank, chosen.others) == ('rank2.5.oom.pickle', 2, 4), 'the first that did'
    first, second, third, fourth, *_ = inspect('run').stdout.splitlines()
    assert first.endswith('run/torch_traces/rank2.5.oom.pickle')
    assert second == '(rank 2 ran out of memory; ranks with a snapshot: 0-3, 7)'
    assert (third, fourth) == ('(failed too: rank 1)', '(ran out of memory too: rank 3)')
    told = json.loads(inspect('run', '--json').stdout)['file']
    assert (told['rank'], told['failure'], told['ranks']) == (2, 'ran out of memory', [0, 1, 2, 3, 7])
    assert told['failed'] == {'1': 'failed', '2': 'ran out of memory', '3': 'ran out of memory'}


def test_a_rank_can_be_chosen_and_an_unknown_one_is_refused_with_those_there_are() -> None:
    for rank in (0, 1, 3):
        listed('run', f'rank{rank}.9.pickle', SMALL, rank=rank, batch=9)
    listed('run', 'rank1.8.oom.pickle', SMALL, rank=1, batch=8)
    first, second, third, *_ = inspect('run', '--rank', 3).stdout.splitlines()
    assert first.endswith('rank3.9.pickle')
    assert second == '(the newest of rank 3; ranks with a snapshot: 0, 1, 3)'
    assert third == '(ran out of memory: rank 1)'
    refused = inspect('run', '--rank', 2)
    assert (refused.returncode, refused.stdout) == (1, '')
    assert refused.stderr == (
        'composer-memprof: rank 2 has no memory snapshot in run; ranks with a snapshot: 0, 1, 3\n'
    )
    with pytest.raises(SnapshotError, match='is one file'):
        snapshot_to_show(saved(SMALL), rank=0)


def test_a_thousand_ranks_are_listed_in_one_line() -> None:
    assert rank_list(range(1024)) == '0-1023'
    assert rank_list(range(0, 1024, 2)) == '0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, … (512 ranks)'


# -- its page -------------------------------------------------------------------------------------------------------


def test_the_page_is_that_of_the_callback() -> None:
    train(MemorySnapshot(schedule={'skip': '1ba', 'active': '1ba'}))
    (page,) = Path('test-run').rglob('*.html')
    shown = inspect('test-run', '--html', 'pages/of-run.html')
    assert shown.stdout.endswith('\nOpen in a browser: pages/of-run.html\n'), shown.stderr
    assert (
        json.loads(inspect(page.with_suffix('.pickle'), '--html', 'of-file.html', '--json').stdout)['file']['page']
        == 'of-file.html'
    )
    assert Path('pages/of-run.html').read_bytes() == page.read_bytes() == Path('of-file.html').read_bytes()


def test_a_page_does_not_replace_a_snapshot() -> None:
    path = saved(SMALL)
    before = path.read_bytes()
    refused = inspect(path, '--html', path)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert path.read_bytes() == before


# -- a part of the recording ----------------------------------------------------------------------------------------

#: Bytes after each event, at 0, 1, 2, 3 and 4 ms: 10, 10 + 30, 10, 10 + 20, 10.
HILLS = plain(
    event('alloc', 512, 10, time=5000),
    event('alloc', 1024, 30, time=6000),
    *freed(1024, 30, time=7000),
    event('alloc', 2048, 20, time=8000),
    *freed(2048, 20, time=9000),
)


@pytest.mark.parametrize(
    ('begin', 'end', 'peak'),
    [
        *((None, None, 40), (0, 0.5, 10), (0, 1, 40), (1.5, 1.7, 40), (2.5, 9, 30), (2, 2.5, 40), (2.1, 2.9, 10)),
        *((None, 1.5, 40), (3.5, None, 30), (3, 3, 30), (4, 4, 30), (-5, 0.1, 10)),
    ],
)
def test_the_peak_of_a_time_range_is_the_most_that_was_allocated_within_it(
    begin: float | None, end: float | None, peak: int
) -> None:
    (device,) = answer(HILLS, TimeSpan(begin, end)).devices
    assert device.peak.bytes == peak
    assert sum(share.bytes for share in device.peak.holders) == peak


def test_a_time_range_without_events_is_refused() -> None:
    for content, span in ((HILLS, TimeSpan(4.5)), (HILLS, TimeSpan(None, -1)), (plain(), TimeSpan(0))):
        with pytest.raises(SnapshotError):
            answer(content, span)
    with pytest.raises(ValueError, match='before the beginning'):
        TimeSpan(2, 1)


def test_a_time_range_is_an_option_of_the_command() -> None:
    path = saved(HILLS)
    shown = inspect(path, '--from', 2.5, '--to', 9)
    assert 'Peak of device 0 from 2.5 ms to 9 ms: 30 B allocated\n' in shown.stdout, shown.stderr
    told = json.loads(inspect(path, '--from', 2.5, '--json').stdout)
    assert told['span'] == {'begin_ms': 2.5, 'end_ms': None} and told['devices'][0]['peak']['bytes'] == 30
    for wrong in (('--from', 2, '--to', 1), ('--from', 100)):
        refused = inspect(path, *wrong)
        assert refused.returncode in (1, 2) and len(refused.stderr.splitlines()) == 1, refused.stderr


# -- modules with what is inside of them ----------------------------------------------------------------------------


def test_a_module_is_told_with_everything_inside_of_it() -> None:
    names = {'net.blocks.0.up': 6, 'net.blocks.0': 4, 'net.blocks.1.up': 5, 'net.head': 2, '': 7}
    events = [
        {**event('alloc', 512 * number, size * MIB), 'module': name}
        for number, (name, size) in enumerate(names.items(), start=1)
    ]
    report = answer(plain(*events))
    (device,) = report.devices
    assert [(each.module, each.bytes // MIB, each.own // MIB, each.blocks) for each in device.peak.module_totals] == [
        ('net', 17, 0, 4),
        ('net.blocks', 15, 0, 3),
        ('net.blocks.0', 10, 4, 2),
        ('net.blocks.0.up', 6, 6, 1),
        ('net.blocks.1.up', 5, 5, 1),  # the module around it has nothing else
        ('net.head', 2, 2, 1),
    ]
    text = printed(report)
    assert '    10.0 MiB  42 %  net.blocks.0 (4.0 MiB own)\n' in text, text
    assert '     7.0 MiB  29 %  none or unknown\n' in text


def test_modules_that_are_not_shown_are_summed_once() -> None:
    events = [
        {**event('alloc', 512 * number, (100 - number) * MIB), 'module': f'layer{number}'} for number in range(1, 12)
    ]
    assert 'and 270.0 MiB in 3 more modules' in printed(answer(plain(*events)))


def test_a_name_with_a_million_dots_takes_no_time() -> None:
    (device,) = answer(plain({**event('alloc', 512, 8), 'module': 'a.' * 1_000_000})).devices
    assert len(device.peak.module_totals) == 1


# -- failures -------------------------------------------------------------------------------------------------------


def fails(size: int, time: int) -> dict[str, Any]:
    asked = {**event('oom', 0, size, [{**FRAME, 'name': 'asks'}], time), 'device_free': 1}
    del asked['addr']
    return asked


def test_the_device_that_failed_comes_first() -> None:
    content = plain(event('alloc', 512, 900, time=1))
    content['device_traces'].append([event('alloc', 512, 10, time=1), fails(50, 2)])
    text = printed(answer(content))
    assert text.index('device 1: 50 B requested') < text.index('Peak of device 1') < text.index('Peak of device 0')


def test_an_error_after_memory_ran_out_is_told_too() -> None:
    content = plain(event('alloc', 512, 900, time=1), fails(50, 2), error='ValueError: later')
    text = printed(answer(content))
    assert text.index('Out of memory on device 0') < text.index('The training ended with ValueError: later')
    content['composer_memprof'] = {'error': 'OutOfMemoryError: x', 'oom': {'message': 'x'}}
    assert 'The training ended' not in printed(answer(content)), 'it is told already'


def test_of_each_earlier_failure_what_held_most_is_told() -> None:
    content = plain(
        event('alloc', 512, 3 * MIB, [{**FRAME, 'name': 'early'}], time=1),
        fails(50, 2),
        *freed(512, 3 * MIB, time=3),
        event('alloc', 1024, 2 * MIB, [{**FRAME, 'name': 'late'}], time=4),
        fails(60, 5),
    )
    first, second = printed(answer(content)).split('Out of memory (2 of 2)')
    assert 'after event 1 of 6, 0.0 ms after the first' in first
    assert 'What held most then:\n     3.0 MiB 100 %  unknown, 1 block\n      me/train.py:7 early' in first, first
    assert 'What held most then' not in second and 'At the failure' in second


@pytest.mark.parametrize(
    'error',
    [
        'RuntimeError: CUDA error: out of memory',
        'RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`',
        "DistBackendError: NCCL error … Cuda failure 2 'out of memory'",
    ],
)
def test_memory_that_ran_out_beside_torchs_allocator_is_told(error: str) -> None:
    content = plain(
        event('alloc', 512, 900, time=2), segments=[segment((512, 900))], phases=[[1, 3, 'backward']], error=error
    )
    report = answer(content)
    assert report.oom is not None and report.ended_out_of_memory
    assert (report.oom.device, report.oom.allocated, report.oom.reserved) == (0, 900, 4096)
    text = ' '.join(printed(report).split())
    assert text.startswith('Out of memory on device 0 batch 3, backward 900 B allocated, 4.0 KiB reserved outside of')
    assert error in text and 'The training ended' not in text


def test_another_error_is_not_out_of_memory() -> None:
    report = answer(plain(event('alloc', 512, 900), error='ValueError: out of memory of my own'))
    assert report.oom is None and not report.ended_out_of_memory
