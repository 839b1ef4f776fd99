"""Fragmentation, growth, and the end of memory in a snapshot."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from composer_memprof.analysis.memory.summary import summary_of
from composer_memprof.report.text.terminal.snapshot_tables import report_text
from tests.support.recordings.made_up_frames import BACKWARD, FORWARD, OPTIMIZER, PHASES, answer, device
from tests.support.recordings.snapshots import FRAME, event, freed, plain, segment


def test_fragmentation_is_told_by_segments_holes_and_who_asked_for_more() -> None:
    content = plain(
        event('segment_alloc', 8192, 4096, [{**FRAME, 'line': 1}]),
        event('alloc', 8192, 1024),
        event('alloc', 10240, 512),
        event('segment_alloc', 16384, 2048, [{**FRAME, 'line': 2}]),
        event('alloc', 16384, 2048),
        *freed(16384, 2048),
        *freed(8192, 1024),
        event('segment_free', 16384, 2048),
        segments=[segment((10240, 512)) | {'address': 8192}, segment((65536, 512), total=512)],
    )
    found = device(content)
    lost = found.fragmentation
    assert lost is not None
    assert (found.reserved_peak, found.reserved_at_end) == (4096 + 2048 + 512, 4096 + 512)
    assert (lost.reserved, lost.allocated, lost.idle) == (6656, 4096, 2560)
    assert (lost.idle_segments, lost.holes, lost.largest_hole) == (0, 2560, 1536)
    assert [(place.bytes, place.idle, place.frames[0].line) for place in lost.growing] == [
        (4096, 0, 1),
        (2048, 2560, 2),
    ]


def test_a_cpu_reserves_nothing_and_says_so() -> None:
    found = answer(plain(event('alloc', 1, 8), segments=[segment((1, 8))], device='cpu'))
    assert found.devices[0].reserved_peak is None
    assert found.devices[0].fragmentation is None
    assert any('no caching allocator' in note for note in found.notes)


def test_expandable_segments_give_reserved_and_no_layout() -> None:
    content = plain(
        event('segment_map', 0, 4096),
        event('alloc', 0, 512),
        event('segment_unmap', 2048, 2048),
        segments=[segment((0, 512), total=2048, is_expandable=True)],
    )
    found = device(content)
    assert (found.reserved_peak, found.reserved_at_end) == (4096, 2048)
    assert found.fragmentation is not None
    assert found.fragmentation.largest_hole is None


def test_pools_and_streams_are_told_apart() -> None:
    content = plain(
        event('alloc', 1, 8),
        segments=[
            segment((1, 8), total=10, segment_type='small', allocated_size=8, active_size=8),
            segment((100, 8), total=20, segment_type='large', stream=7),
            segment((200, 8), total=30, segment_type='large', segment_pool_id=(1, 0)),
        ],
    )
    found = [(pool.pool, pool.stream, pool.reserved, pool.allocated) for pool in device(content).pools]
    assert found == [('large of pool (1, 0)', 0, 30, 0), ('large', 7, 20, 0), ('small', 0, 10, 8)]


def batches(leak: int, count: int = 8) -> dict[str, Any]:
    """Each batch allocates and frees an activation, and keeps ``leak`` bytes."""
    events, phases = [], []
    for batch in range(count):
        time = 100 * batch
        phases += [[time, batch, 'forward'], [time + 50, batch, 'backward'], [time + 90, batch, 'between batches']]
        events.append(event('alloc', 512, 100, [FORWARD, FRAME], time + 1))
        if leak:
            events.append(event('alloc', 4096 + 512 * batch, leak, [{**FRAME, 'name': 'leaky'}], time + 2))
        events += freed(512, 100, [BACKWARD, FRAME], time + 51)
    return plain(*events, phases=phases)


def test_what_grows_in_every_batch_is_named_and_a_steady_run_is_not() -> None:
    steady = device(batches(0)).growth
    assert (steady.steady, steady.growing, steady.held_bytes) == (True, [], 0)
    growing = device(batches(10)).growth
    assert growing.steady is False
    assert growing.batches == [2, 3, 4, 5, 6, 7]
    assert growing.at_end == [30, 40, 50, 60, 70, 80]
    (place,) = growing.growing
    assert (place.per_batch, place.frames[0].name) == (10, 'leaky')
    assert growing.held_bytes == 70, 'what the last batch holds may still be freed'


def test_two_batches_are_too_few_to_tell() -> None:
    assert device(batches(10, 2)).growth.steady is None
    assert device(plain(event('alloc', 1, 8))).growth.batches == []


def recorded_late(first: int, count: int, leak: int) -> dict[str, Any]:
    """As :func:`batches`, recorded from a batch on; what the batches before have left is there."""
    content, began = batches(leak, count), 100 * first
    trace = [each for each in content['device_traces'][0] if each['time_us'] > began]
    left = segment(*[(4096 + 512 * batch, leak) for batch in range(count)], total=1 << 20)
    for block in left['blocks']:
        block['frames'] = [{**FRAME, 'name': 'leaky'}]
    phases = [phase for phase in content['composer_memprof']['phases'] if phase[0] >= began]
    return plain(*trace, phases=[[began - 10, first, 'between batches'], *phases], segments=[left])


@pytest.mark.parametrize(('first', 'count', 'is_leak'), [(4, 6, True), (4, 5, True), (1, 2, False), (1, 3, True)])
def test_what_lay_there_when_the_recording_began_tells_of_a_leak_before_it(
    first: int, count: int, is_leak: bool
) -> None:
    found = device(recorded_late(first, count, 10)).growth
    assert found.steady is (False if is_leak else None), 'after one batch, one more is too few to tell'
    leaks = [(place.per_batch, place.at_end[-1], place.frames[0].name) for place in found.growing]
    assert leaks == [(10, 10 * count, 'leaky')] * is_leak


def test_what_has_no_stack_lay_there_for_any_reason() -> None:
    content = recorded_late(4, 6, 10)
    content['segments'].append(segment((1 << 30, 4096)))  # as of a parameter
    (place,) = device(content).growth.growing
    assert place.at_end[-1] == 60


def test_the_end_of_memory_says_what_was_asked_and_what_there_was() -> None:
    asked = {**event('oom', 0, 999, [{**FRAME, 'name': 'greedy'}], time=30), 'device_free': 55}
    del asked['addr']
    content = plain(
        event('alloc', 512, 100, time=11), asked, segments=[segment((512, 100))], phases=PHASES, oom={'total': 5000}
    )
    oom = answer(content).oom
    assert oom is not None
    assert (oom.requested, oom.free, oom.allocated, oom.reserved, oom.total) == (999, 55, 100, 4096, 5000)
    assert (oom.batch, oom.phase, oom.asked[0].name) == (1, 'optimizer', 'greedy')


def fails(name: str, size: int, free: int, time: int) -> dict[str, Any]:
    asked = {**event('oom', 0, size, [{**FRAME, 'name': name}], time), 'device_free': free}
    del asked['addr']
    return asked


def out_of_memory_three_times() -> dict[str, Any]:
    """As of another program: it frees and tries again twice, and then frees everything, and allocates more."""
    return plain(
        event('alloc', 512, 3 << 20, [FORWARD, FRAME], 1),
        fails('first', 9 << 20, 1 << 20, 2),
        event('alloc', 4 << 20, 1 << 20, [OPTIMIZER, FRAME], 3),
        fails('second', 8 << 20, 2 << 20, 4),
        fails('third', 7 << 20, 3 << 20, 5),
        *freed(512, 3 << 20, [BACKWARD, FRAME], 6),
        event('alloc', 16 << 20, 20 << 20, [FRAME], 7),
        segments=[segment((4 << 20, 1 << 20), (16 << 20, 20 << 20), total=40 << 20)],
    )


def test_each_failed_allocation_of_another_program_is_told_from_its_event() -> None:
    found = answer(out_of_memory_three_times())
    mib = 1 << 20
    assert [(oom.asked[0].name, oom.requested, oom.free, oom.allocated) for oom in found.ooms] == [
        ('first', 9 * mib, 1 * mib, 3 * mib),
        ('second', 8 * mib, 2 * mib, 4 * mib),
        ('third', 7 * mib, 3 * mib, 4 * mib),
    ]
    assert found.oom == found.ooms[-1]
    (device,) = found.devices
    assert [(peak.event, peak.bytes) for peak in device.at_failures] == [(1, 3 * mib), (3, 4 * mib), (4, 4 * mib)]
    assert device.at_failure == device.at_failures[-1] and device.peak.bytes == 21 * mib
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(report_text(found))
    printed = console.export_text()
    for words in (
        'Out of memory (1 of 3) on device 0: 9.0 MiB requested',
        '3.0 MiB activation\n      me/train.py:7 first',
        'Out of memory (3 of 3) on device 0: 7.0 MiB requested',
        '3.0 MiB activation, 1.0 MiB optimizer state',
        'At the failure on device 0: 4.0 MiB allocated',
    ):
        assert words in printed, printed


def test_what_a_recorder_noted_counts_for_the_last_failure_alone() -> None:
    content = out_of_memory_three_times() | {'composer_memprof': {'oom': {'free': 5, 'message': 'no memory'}}}
    assert [(oom.free, oom.message) for oom in answer(content).ooms] == [
        *((1 << 20, None), (2 << 20, None), (5, 'no memory'))
    ]
    content['composer_memprof'] = {'error': 'ValueError: later'}
    (device,) = answer(content).devices
    assert device.at_failure is not None and device.at_failure.event == 8, 'at the end, where the error came'


def test_a_summary_stays_small_and_says_the_most() -> None:
    content = batches(10)
    content['composer_memprof'] |= {'error': 'OutOfMemoryError: ' + 'ä' * 5000, 'oom': {'message': '\u2028ö' * 3000}}
    content['device_traces'] = [
        [
            {**row, 'frames': [{'filename': '/long' * 50 + f'{number}.py', 'line': 1, 'name': 'f' * 500}]}
            for number, row in enumerate(content['device_traces'][0])
        ]
    ] * 20
    summary = summary_of(answer(content)).as_dict()
    assert len(json.dumps(summary, separators=(',', ':')).encode()) <= 4096, 'as the file has it'
    assert summary['devices'][0]['peak']['bytes'] == 180
    assert len(summary['devices']) + summary['devices_left_out'] == 20
