"""The peak of a snapshot: when it was and what was allocated, and what ``inspect`` prints of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_memprof import MemorySnapshot
from composer_memprof.analysis.memory.blocks.lifetimes import lifetimes
from composer_memprof.analysis.memory.blocks.time_span import TimeSpan
from composer_memprof.analysis.memory.findings.peak import Peak
from composer_memprof.analysis.memory.snapshot_report import SnapshotReport, report_on
from composer_memprof.analysis.memory.summary import summary_of
from composer_memprof.analysis.run import snapshots_by_rank
from composer_memprof.analysis.snapshot.loading import load_snapshot, read_snapshot
from composer_memprof.recorders.allocations.cpu_allocations import PROFILE_ARGUMENTS, snapshot_of
from composer_memprof.recorders.allocations.snapshot_pickle import write_pickle
from composer_memprof.recorders.kineto import KinetoRecorder
from tests.conftest import Regression, child_environment, make_trainer, train
from tests.support.json_schemas import as_promised
from tests.support.processes import warm_python
from tests.support.recordings.snapshots import FRAME, REAL, TORCH, event, freed, plain, saved, segment


def answer(content: Any) -> SnapshotReport:
    return report_on(load_snapshot(saved(content)))


def peaks(content: Any) -> list[Peak]:
    return [device.peak for device in answer(content).devices]


def test_the_peak_is_worked_back_from_what_is_left_at_the_end() -> None:
    path = saved(
        plain(
            event('alloc', 100, 40, [TORCH, FRAME]),
            *freed(900, 512),  # allocated before the recording
            event('alloc', 200, 20),
            *freed(100, 40),
            segments=[segment((200, 20), (800, 300))],  # 800: there before, and still there
        )
    )
    snapshot = load_snapshot(path)
    blocks = lifetimes(snapshot.devices[0])
    assert blocks.allocated().tolist() == [812, 852, 340, 340, 360, 320, 320]
    assert blocks.active().tolist() == [812, 852, 852, 340, 360, 360, 320]
    (device,) = report_on(snapshot).devices
    peak = device.peak
    assert (peak.bytes, peak.event, peak.allocated_before, device.active_peak) == (852, 1, 812, 852)
    assert [(holder.bytes, holder.before, [str(frame) for frame in holder.frames]) for holder in peak.holders] == [
        (512, True, []),
        (300, True, ['/home/me/train.py:7 step']),
        (40, False, ['/home/me/train.py:7 step']),
    ]


def test_a_peak_after_address_reuse_counts_each_block_once() -> None:
    (peak,) = peaks(
        plain(
            event('alloc', 100, 10),
            event('free_completed', 100, 10),
            event('alloc', 100, 30),
            event('alloc', 200, 5),
            segments=[segment((100, 30), (200, 5))],
        )
    )
    assert (peak.bytes, peak.allocated_before, sum(holder.bytes for holder in peak.holders)) == (35, 0, 35)


def test_a_block_counts_as_the_allocator_rounded_it_where_the_end_tells() -> None:
    rounded = segment((512, 512))
    rounded['blocks'][0]['requested_size'] = 100
    (device,) = answer(plain(event('alloc', 512, 100), segments=[rounded])).devices
    assert (device.peak.bytes, device.peak.requested) == (512, 100)
    assert (device.rounded_at_end, device.requested_at_end) == (512, 100)


def test_what_another_stream_still_uses_is_active_and_not_allocated() -> None:
    waiting = segment((100, 10))
    waiting['blocks'][0]['state'] = 'active_awaiting_free'
    content = plain(event('alloc', 100, 10), event('free_requested', 100, 10), segments=[waiting])
    blocks = lifetimes(load_snapshot(saved(content)).devices[0])
    assert (blocks.allocated().tolist(), blocks.active().tolist()) == ([0, 10, 0], [0, 10, 10])


def test_a_history_that_begins_between_the_two_events_of_a_free_counts_the_block_as_freed() -> None:
    content = plain(
        event('free_completed', 100, 600),
        event('alloc', 200, 10),
        *freed(900, 512),
        segments=[segment((200, 10))],
    )
    blocks = lifetimes(load_snapshot(saved(content)).devices[0])
    assert blocks.allocated().tolist() == [512, 512, 522, 10, 10]
    assert blocks.active().tolist() == [1112, 512, 522, 522, 10]
    assert peaks(content)[0].bytes == 522


def test_a_block_that_awaits_its_free_at_the_end_is_not_allocated_there() -> None:
    waiting = segment((100, 10))
    waiting['blocks'][0]['state'] = 'active_pending_free'
    blocks = lifetimes(load_snapshot(saved(plain(event('alloc', 100, 10), segments=[waiting]))).devices[0])
    assert (blocks.allocated().tolist(), blocks.active().tolist()) == ([0, 0], [0, 10])


def test_several_devices_have_a_peak_each() -> None:
    content = plain(event('alloc', 1, 10), segments=[segment((1, 10)), segment((5, 70), device=1)])
    content['device_traces'].append([])
    assert [(peak.device, peak.bytes) for peak in peaks(content)] == [(0, 10), (1, 70)]


def test_a_history_without_events_or_times_is_read() -> None:
    old = event('alloc', 1, 10)
    del old['time_us'], old['frames']
    blocks = [{'size': 10, 'state': 'active_allocated', 'history': [{'addr': 1, 'frames': [FRAME], 'real_size': 10}]}]
    content = {'device_traces': [[old]], 'segments': [{'device': 0, 'address': 1, 'total_size': 10, 'blocks': blocks}]}
    (peak,) = peaks(content)
    assert (peak.bytes, peak.time_us) == (10, None)
    assert peaks({'device_traces': [[]], 'segments': []}) == []


def test_a_peak_is_placed_in_batch_and_phase() -> None:
    content = plain(
        event('alloc', 1, 10, time=100),
        event('alloc', 2, 10, time=200),
        *freed(2, 10, time=300),
        phases=[[50, 12, 'forward'], [150, 12, 'backward'], [250, 13, 'forward']],
    )
    (peak,) = peaks(content)
    assert (peak.event, peak.time_us, peak.batch, peak.phase) == (2, 100, 12, 'backward')


def test_each_phase_has_its_own_peak_over_all_batches_which_may_be_what_the_phase_before_left() -> None:
    content = plain(
        event('alloc', 1, 10, time=10),
        event('alloc', 2, 10, time=100),
        event('alloc', 3, 30, time=200),
        *freed(3, 30, time=300),
        event('alloc', 4, 1, time=400),
        phases=[[50, 12, 'forward'], [150, 12, 'backward'], [250, 12, 'optimizer'], [350, 13, 'forward']],
    )
    snapshot = read_snapshot(content)
    (device,) = report_on(snapshot).devices
    assert device.phase_peaks == {'forward': 21, 'backward': 50, 'optimizer': 50}
    assert summary_of(report_on(snapshot)).devices[0].phases == device.phase_peaks
    (part,) = report_on(snapshot, TimeSpan(None, 0.15)).devices
    assert part.phase_peaks == {'forward': 20}
    assert report_on(read_snapshot(plain(event('alloc', 1, 10)))).devices[0].phase_peaks == {}


@pytest.mark.parametrize(
    ('name', 'expected', 'reserved'),
    [
        ('gpt_ctx128_forward', 19_498_420_224, 19_667_091_456),
        ('gpt_ctx128_fullstep', 55_078_640_128, 61_111_009_280),
    ],
)
def test_the_peaks_of_real_gpu_snapshots(name: str, expected: int, reserved: int) -> None:
    path = REAL / f'{name}.pickle'
    if not path.exists():
        pytest.skip('the snapshots are no part of the project')
    (device,) = report_on(load_snapshot(path)).devices
    assert (device.peak.bytes, device.reserved_peak) == (expected, reserved)
    assert sum(holder.bytes for holder in device.peak.holders) == expected
    known = sum(share.bytes for share in device.peak.categories if share.category != 'unknown')
    assert known + device.peak.allocated_before >= 0.999 * expected


def test_a_snapshot_of_this_cpu_names_the_line_that_allocated() -> None:
    def step() -> None:
        big = torch.empty(1 << 20)
        torch.empty(10)
        del big

    with KinetoRecorder(**PROFILE_ARGUMENTS) as recorder:
        step()
    assert recorder.result is not None
    write_pickle(snapshot_of(recorder.result), Path('cpu.pickle'))
    (device,) = report_on(load_snapshot(Path('cpu.pickle'))).devices
    assert device.peak.bytes == (1 << 22) + 40
    assert device.peak.holders[0].frames[0].name == 'step'
    assert device.peak.holders[0].frames[0].filename == __file__
    assert device.reserved_peak is None, 'a CPU reserves nothing'


@pytest.mark.slow
def test_of_a_compiled_function_the_line_that_called_it_is_named(tmp_path: Path) -> None:
    code = (
        f'import os; os.environ["TORCHINDUCTOR_CACHE_DIR"] = {str(tmp_path / "cache")!r}\n'
        'import torch, torch._inductor.config as inductor; '
        'inductor.compile_threads = inductor.cpp.simdlen = 1  # no processes that import torch, and few headers\n'
        'from composer_memprof.recorders.allocations.cpu_allocations import *; '
        'from composer_memprof.recorders.allocations.snapshot_pickle import write_pickle; '
        'from composer_memprof.recorders.kineto import KinetoRecorder; from pathlib import Path\n'
        'function = torch.compile(lambda x: (x @ x).sin() @ x)\n'
        'def calls():\n'
        '    return function(torch.ones(300, 300))\n'
        'calls()\n'
        'with KinetoRecorder(**PROFILE_ARGUMENTS) as recorder: calls()\n'
        'write_pickle(snapshot_of(recorder.result), Path("compiled.pickle"))\n'
    )
    Path('calls.py').write_text(code)
    ran = warm_python.run([sys.executable, 'calls.py'], capture_output=True, text=True, env=child_environment())
    if 'InvalidCxxCompiler' in ran.stderr:
        pytest.skip('there is no C++ compiler')
    assert ran.returncode == 0, ran.stderr[-2000:]
    (device,) = report_on(load_snapshot(Path('compiled.pickle'))).devices
    largest = device.peak.holders[0]
    assert largest.bytes >= 2 * 300 * 300 * 4
    assert {Path(frame.filename).name for holder in device.peak.holders for frame in holder.frames} == {'calls.py'}


# -- the command --------------------------------------------------------------------------------------------------


def inspect(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return warm_python.run(
        [sys.executable, '-m', 'composer_memprof.cli', 'inspect', *map(str, arguments)],
        capture_output=True,
        text=True,
        env=child_environment(**environment),
    )


def test_inspect_prints_for_a_person_and_as_json() -> None:
    path = saved(
        plain(
            event('alloc', 100, 3 << 20, [TORCH, FRAME], time=5),
            segments=[segment((100, 3 << 20))],
            phases=[[0, 7, 'forward'], [9, 7, 'backward']],
        )
    )
    for width in (50, 80):
        run = inspect(path, COLUMNS=str(width))
        assert run.returncode == 0, run.stderr
        for words in ('3.0 MiB', 'batch 7, forward', 'activation', 'train.py:7 step', '1 more frame'):
            assert words in run.stdout
        assert all(len(line) <= width for line in run.stdout.splitlines())
    (device,) = as_promised('inspect', inspect(path, '--json').stdout)['devices']
    assert device['peak']['bytes'] == 3 << 20
    assert device['peak']['holders'][0]['frames'][0]['line'] == 7


def test_what_a_file_says_is_printed_as_it_is() -> None:
    odd = {'filename': '[red]/x\x1b[2J/a.py', 'line': 1, 'name': '[bold]f\n'}
    run = inspect(saved(plain(event('alloc', 1, 10, [odd]))))
    assert run.returncode == 0
    assert '\x1b' not in run.stdout
    assert 'a.py:1 [bold]f?' in run.stdout


def test_inspect_refuses_in_one_line() -> None:
    for path, code in ((saved(['nothing']), 1), (Path('missing'), 2), (Path(), 1)):
        run = inspect(path)
        assert (run.returncode, run.stdout) == (code, '')
        assert len(run.stderr.splitlines()) == 1, run.stderr


def test_of_a_runs_folder_the_newest_snapshot_is_inspected() -> None:
    train(MemorySnapshot(schedule={'skip': '1ba', 'active': '1ba', 'every': '3ba', 'repeat': 2}))
    of_folder, of_file = (
        inspect(Path('test-run')),
        inspect(Path('test-run/torch_traces/rank0.5.memory_snapshot.pickle')),
    )
    assert of_folder.returncode == 0
    first, rest = of_folder.stdout.split('\n', 1)
    assert first.endswith('rank0.5.memory_snapshot.pickle') and rest == of_file.stdout


def test_of_a_runs_folder_that_of_a_failure_comes_first() -> None:
    class Fails(Regression):
        def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
            raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 GiB.')

    for model, more in ((None, {}), (Fails(), {'on_oom': True})):
        trainer = make_trainer(MemorySnapshot(schedule={'active': '1ba', 'skip': '5ba'}, **more), model=model)
        try:
            trainer.fit()
        except torch.OutOfMemoryError:
            trainer.close()
        trainer.close()
    (found,) = snapshots_by_rank(Path('test-run')).values()
    assert found.name == 'rank0.0.memory_snapshot.oom.pickle', 'and not the later one of batch 6'


def test_a_snapshot_without_allocations_says_so() -> None:
    run = inspect(saved(plain()))
    assert (run.returncode, run.stdout) == (0, 'x.pickle: no allocation was recorded\n')


def test_reading_needs_neither_torch_nor_composer() -> None:
    code = (
        'import sys, composer_memprof.analysis.memory.findings.diff, composer_memprof.analysis.memory.summary, '
        'composer_memprof.report.text.terminal.snapshot_tables; print({"torch", "composer"} & set(sys.modules))'
    )
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, env=child_environment())
    assert run.stdout.strip() == 'set()', run.stderr
