"""From a snapshot to an answer, and nothing that is in a file is run."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_memprof.analysis.lifetimes import lifetimes
from composer_memprof.analysis.peak import peaks
from composer_memprof.analysis.snapshot_file import SnapshotError, load_snapshot
from composer_memprof.recorders.cpu_allocations import PROFILE_ARGUMENTS, snapshot_of
from composer_memprof.recorders.kineto import KinetoRecorder
from composer_memprof.recorders.snapshots import write_pickle
from tests.conftest import child_environment

REAL = Path(__file__).parent.parent.parent / 'shared' / 'data' / 'snapshots'
FRAME = {'filename': '/home/me/train.py', 'line': 7, 'name': 'step'}
TORCH = {'filename': '/x/lib/python3.11/site-packages/torch/nn/functional.py', 'line': 1, 'name': 'linear'}


def event(action: str, address: int, size: int, frames: Any = None, time: int = 0) -> dict[str, Any]:
    return {'action': action, 'addr': address, 'size': size, 'stream': 0, 'time_us': time, 'frames': frames or [FRAME]}


def segment(*blocks: tuple[int, int], device: int = 0) -> dict[str, Any]:
    live = [{'address': a, 'size': s, 'state': 'active_allocated', 'frames': [FRAME]} for a, s in blocks]
    return {'device': device, 'address': blocks[0][0], 'total_size': 4096, 'blocks': live}


def saved(content: Any, name: str = 'x.pickle') -> Path:
    Path(name).write_bytes(pickle.dumps(content, protocol=4))
    return Path(name)


def plain(*events: dict[str, Any], segments: Any = ()) -> dict[str, Any]:
    return {'device_traces': [list(events)], 'segments': list(segments)}


def test_the_peak_is_worked_back_from_what_is_left_at_the_end() -> None:
    path = saved(
        plain(
            event('alloc', 100, 40, [TORCH, FRAME]),
            event('free_requested', 900, 512),
            event('free_completed', 900, 512),  # allocated before the recording
            event('alloc', 200, 20),
            event('free_requested', 100, 40),
            event('free_completed', 100, 40),
            segments=[segment((200, 20), (800, 300))],  # 800: there before, and still there
        )
    )
    snapshot = load_snapshot(path)
    blocks = lifetimes(snapshot.devices[0])
    assert blocks.allocated().tolist() == [812, 852, 340, 340, 360, 320, 320]
    assert blocks.active().tolist() == [812, 852, 852, 340, 360, 360, 320]
    (peak,) = peaks(snapshot)
    assert (peak.bytes, peak.event, peak.allocated_before) == (852, 1, 812)
    assert [(holder.bytes, [str(frame) for frame in holder.frames]) for holder in peak.holders] == [
        (512, []),
        (340, ['/home/me/train.py:7 step']),
    ]


def test_a_peak_after_address_reuse_counts_each_block_once() -> None:
    path = saved(
        plain(
            event('alloc', 100, 10),
            event('free_completed', 100, 10),
            event('alloc', 100, 30),
            event('alloc', 200, 5),
            segments=[segment((100, 30), (200, 5))],
        )
    )
    (peak,) = peaks(load_snapshot(path))
    assert (peak.bytes, peak.allocated_before, sum(holder.bytes for holder in peak.holders)) == (35, 0, 35)


def test_several_devices_have_a_peak_each() -> None:
    content = plain(event('alloc', 1, 10), segments=[segment((1, 10)), segment((5, 70), device=1)])
    content['device_traces'].append([])
    assert [(peak.device, peak.bytes) for peak in peaks(load_snapshot(saved(content)))] == [(0, 10), (1, 70)]


def test_a_history_without_events_or_times_is_read() -> None:
    old = event('alloc', 1, 10)
    del old['time_us'], old['frames']
    blocks = [{'size': 10, 'state': 'active_allocated', 'history': [{'addr': 1, 'frames': [FRAME], 'real_size': 10}]}]
    content = {'device_traces': [[old]], 'segments': [{'device': 0, 'address': 1, 'total_size': 10, 'blocks': blocks}]}
    (peak,) = peaks(load_snapshot(saved(content)))
    assert (peak.bytes, peak.time_us) == (10, None)
    assert peaks(load_snapshot(saved({'device_traces': [[]], 'segments': []}))) == []


@pytest.mark.parametrize(
    ('name', 'expected'),
    [('gpt_ctx128_forward', 19_498_420_224), ('gpt_ctx128_fullstep', 55_078_640_128)],
)
def test_the_peaks_of_real_gpu_snapshots(name: str, expected: int) -> None:
    path = REAL / f'{name}.pickle'
    if not path.exists():
        pytest.skip('the snapshots are no part of the project')
    (peak,) = peaks(load_snapshot(path))
    assert peak.bytes == expected
    assert sum(holder.bytes for holder in peak.holders) == expected


def test_a_snapshot_of_this_cpu_names_the_line_that_allocated() -> None:
    def step() -> None:
        big = torch.empty(1 << 20)
        torch.empty(10)
        del big

    with KinetoRecorder(**PROFILE_ARGUMENTS) as recorder:
        step()
    assert recorder.result is not None
    write_pickle(snapshot_of(recorder.result), Path('cpu.pickle'))
    (peak,) = peaks(load_snapshot(Path('cpu.pickle')))
    assert peak.bytes == (1 << 22) + 40
    assert peak.holders[0].frames[0].name == 'step'
    assert peak.holders[0].frames[0].filename == __file__


# -- files that are not trusted -----------------------------------------------------------------------------------


class Attack:
    def __reduce__(self) -> Any:
        return os.system, ('touch pwned',)


@pytest.mark.parametrize('content', [Attack(), {'device_traces': [[Attack()]], 'segments': []}, {'x': len}, os.getcwd])
@pytest.mark.parametrize('zipped', [False, True])
def test_a_pickle_that_names_anything_is_refused_and_does_nothing(content: Any, zipped: bool) -> None:
    path = saved(content)
    if zipped:
        path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(SnapshotError, match='names'):
        load_snapshot(path)
    assert not Path('pwned').exists()


@pytest.mark.parametrize(
    ('content', 'words'),
    [
        ([1, 2], ['list']),
        ({'segments': []}, ['device_traces']),
        (plain(event('explode', 1, 1)), ["'explode'"]),
        (plain(event('alloc', 1, 2**63)), ['size=9223372036854775808']),
        (plain(event('alloc', -5, 1)), ['addr=-5']),
        (plain(event('alloc', 1, 1.5)), ['size=1.5']),  # type: ignore[arg-type]
        (plain(event('alloc', 1, 1, frames='nowhere')), ['stack']),
        (plain(event('alloc', 1, 1, frames=['nowhere'])), ['frame']),
        (plain(segments=[{'device': 0, 'address': 1, 'total_size': 1}]), ['block']),
        (plain(segments=[3]), ['segment']),
    ],
)
def test_what_is_no_snapshot_is_one_line(content: Any, words: list[str]) -> None:
    with pytest.raises(SnapshotError) as caught:
        load_snapshot(saved(content))
    assert '\n' not in str(caught.value)
    assert all(word in str(caught.value) for word in ['x.pickle', *words]), str(caught.value)


def _whole() -> bytes:
    frames = [FRAME, TORCH]
    events = [event('alloc', 64 * i, 8 + i, frames, i) for i in range(30)]
    return pickle.dumps(plain(*events, segments=[segment((64, 9), (128, 10))]), protocol=4)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_read_whole_or_refused(data: st.DataObject) -> None:
    content = bytearray(_whole())
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(['flip', 'cut', 'insert', 'delete']))
        place = data.draw(st.integers(0, max(len(content) - 1, 0)))
        if kind == 'flip' and content:
            content[place] = data.draw(st.integers(0, 255))
        elif kind == 'cut':
            del content[place:]
        elif kind == 'insert':
            content[place:place] = data.draw(st.binary(max_size=8))
        else:
            del content[place : place + data.draw(st.integers(1, 8))]
    path = Path('damaged.pickle')
    path.write_bytes(bytes(content))
    try:
        snapshot = load_snapshot(path)
    except SnapshotError as error:
        assert '\n' not in str(error)
    else:
        for peak in peaks(snapshot):
            json.dumps(peak.bytes)


# -- the command --------------------------------------------------------------------------------------------------


def inspect(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, '-m', 'composer_memprof.cli', 'inspect', *map(str, arguments)],
        capture_output=True,
        text=True,
        env=child_environment(**environment),
    )


def test_inspect_prints_for_a_person_and_as_json() -> None:
    path = saved(plain(event('alloc', 100, 3 << 20), segments=[segment((100, 3 << 20))]))
    run = inspect(path, COLUMNS='60')
    assert run.returncode == 0, run.stderr
    assert '3.0 MiB at the peak' in run.stdout
    assert 'train.py:7' in run.stdout
    assert all(len(line) <= 60 for line in run.stdout.splitlines())
    (peak,) = json.loads(inspect(path, '--json').stdout)
    assert peak['bytes'] == 3 << 20
    assert peak['holders'][0]['frames'][0]['line'] == 7


def test_inspect_refuses_in_one_line() -> None:
    for path, code in ((saved(Attack()), 1), (Path('missing'), 2)):
        run = inspect(path)
        assert run.returncode == code
        assert len(run.stderr.splitlines()) == 1, run.stderr
    assert not Path('pwned').exists()


def test_reading_needs_neither_torch_nor_composer() -> None:
    code = 'import sys, composer_memprof.analysis.peak, composer_memprof.report.tables; print({"torch", "composer"} & set(sys.modules))'
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, env=child_environment())
    assert run.stdout.strip() == 'set()', run.stderr
