"""Attribution: sums are exact, and categories come from tensors, phases and stacks."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from composer_memprof.analysis.memory.blocks.frames import own_frames
from composer_memprof.analysis.memory.blocks.lifetimes import lifetimes
from composer_memprof.analysis.memory.snapshot_report import DeviceReport, SnapshotReport, report_on
from composer_memprof.analysis.memory.summary import summary_of
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.analysis.snapshot.model import ALLOC, FREE_COMPLETED, FREE_REQUESTED, Frame, Snapshot
from composer_memprof.report.text.terminal.snapshot_tables import report_text
from tests.support.snapshots import FRAME, TORCH, event, freed, plain, saved, segment, without_stacks

SITE = '/x/lib/python3.11/site-packages/torch'
FORWARD = {'filename': f'{SITE}/nn/modules/linear.py', 'line': 1, 'name': 'forward'}
BACKWARD = {'filename': f'{SITE}/autograd/__init__.py', 'line': 1, 'name': 'backward'}
OPTIMIZER = {'filename': f'{SITE}/optim/adamw.py', 'line': 1, 'name': 'step'}
LOADER = {'filename': f'{SITE}/utils/data/dataloader.py', 'line': 1, 'name': '__next__'}
TRAINER = {
    'filename': '/x/lib/python3.11/site-packages/composer/trainer/trainer.py',
    'line': 1,
    'name': '_train_microbatches',
}
ZERO_GRAD = {'filename': f'{SITE}/nn/modules/module.py', 'line': 1, 'name': 'zero_grad'}
INIT = {'filename': f'{SITE}/nn/modules/linear.py', 'line': 1, 'name': '__init__'}


def answer(content: Any) -> SnapshotReport:
    return report_on(load_snapshot(saved(content)))


def device(content: Any) -> DeviceReport:
    return answer(content).devices[0]


# -- against a reference that walks the events one by one ----------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> dict[str, Any]:
    """Histories of a caching allocator that reuses addresses. The recording may have lost its beginning."""
    live: dict[int, int] = {}
    waiting: dict[int, int] = {}
    events = []
    places = [[{**FRAME, 'line': line}] for line in range(3)]
    for time in range(draw(st.integers(0, 40))):
        action = draw(st.sampled_from(['alloc', 'alloc', 'free', 'complete', 'both']))
        frames = draw(st.sampled_from(places))
        if action == 'alloc':
            address = 512 * draw(st.integers(0, 7))
            if address not in live and address not in waiting:
                live[address] = draw(st.integers(1, 512))
                events.append(event('alloc', address, live[address], frames, time))
        elif action == 'complete' and waiting:
            address = draw(st.sampled_from(sorted(waiting)))
            events.append(event('free_completed', address, waiting.pop(address), frames, time))
        elif action in ('free', 'both') and live:
            address = draw(st.sampled_from(sorted(live)))
            events.append(event('free_requested', address, live[address], frames, time))
            if action == 'both':
                events.append(event('free_completed', address, live.pop(address), frames, time))
            else:
                waiting[address] = live.pop(address)
    segments = []
    for address in sorted({*live, *waiting}):
        size = {**live, **waiting}[address]
        block = {'address': address, 'size': 512, 'requested_size': size, 'frames': places[0]}
        block['state'] = 'active_allocated' if address in live else 'active_awaiting_free'
        segments.append({'device': 0, 'address': address, 'total_size': 512, 'blocks': [block]})
    return plain(*events[draw(st.integers(0, 20)) :], segments=segments)


def by_walking(snapshot: Snapshot) -> tuple[list[int], list[int]]:
    """Bytes allocated and active over time, computed block by block: slow and simple."""
    history = snapshot.devices[0]
    events = list(zip(history.action.tolist(), history.address.tolist(), history.size.tolist()))
    ends = dict(
        zip(history.blocks.address.tolist(), zip(history.blocks.size.tolist(), history.blocks.awaiting.tolist()))
    )
    blocks = []  # start, freed, completed, size
    requests = any(action == FREE_REQUESTED for action, _, _ in events)
    for address in sorted({*(address for _, address, _ in events), *ends}):
        current: list[int] | None = None
        here = [(number, action, size) for number, (action, at, size) in enumerate(events) if at == address]
        for number, action, size in here:
            if action == ALLOC:
                current = [number, len(events), len(events), size]
                blocks.append(current)
                continue
            if current is None:
                current = [-1, len(events), len(events), size]
                blocks.append(current)
                if action == FREE_COMPLETED and requests:
                    current[1] = -1  # its owner freed it before the recording
            if action == FREE_REQUESTED:
                current[1] = number
            elif action == FREE_COMPLETED:
                current[1], current[2] = min(current[1], number), number
        if address in ends and current is None:
            current = [-1, -1 if ends[address][1] else len(events), len(events), 0]
            blocks.append(current)
        if address in ends:
            assert current is not None
            current[3] = ends[address][0]
    moments = range(len(events) + 1)
    return (
        [sum(size for start, freed, _, size in blocks if start < count <= freed) for count in moments],
        [sum(size for start, _, done, size in blocks if start < count <= done) for count in moments],
    )


@settings(max_examples=300, deadline=None)
@given(content=histories())
def test_bytes_over_time_are_those_of_a_walk_over_the_events(content: dict[str, Any]) -> None:
    snapshot = load_snapshot(saved(content))
    if not snapshot.devices:
        return
    blocks = lifetimes(snapshot.devices[0])
    allocated, active = by_walking(snapshot)
    assert blocks.allocated().tolist() == allocated
    assert blocks.active().tolist() == active
    (found,) = report_on(snapshot).devices
    peak = found.peak
    assert (peak.bytes, peak.event) == (max(allocated), allocated.index(max(allocated)))
    assert found.active_peak == max(active)
    for parts in (peak.holders, peak.categories, peak.modules):
        assert sum(part.bytes for part in parts) == peak.bytes
    for share in peak.categories:
        assert sum(rule.bytes for rule in share.rules) == share.bytes
    assert sum(holder.bytes for holder in peak.holders if holder.before) == peak.allocated_before
    assert peak.requested <= peak.bytes


# -- categories ---------------------------------------------------------------------------------------------------


def category_of(content: Any) -> tuple[str, str]:
    (holder,) = device(content).peak.holders
    return holder.category, holder.rule


PHASES = [
    [0, 1, 'dataloader'],
    [10, 1, 'forward'],
    [20, 1, 'backward'],
    [30, 1, 'optimizer'],
    [40, 1, 'between batches'],
    [50, 2, 'forward'],
]


@pytest.mark.parametrize(
    ('born', 'died', 'category', 'rule'),
    [
        (1, 12, 'input', 'allocated while a batch was loaded'),
        (1, 2, 'temporary', 'same phase'),
        (11, 22, 'activation', 'allocated in forward, freed in a later phase'),
        (11, 12, 'temporary', 'same phase'),
        (11, 51, 'activation', 'allocated in forward, freed in a later phase'),
        (11, None, 'unknown', 'kept after its batch'),
        (51, None, 'activation', 'in forward of the last batch, not freed'),
        (21, 22, 'temporary', 'same phase'),
        (21, 45, 'gradient', 'allocated in backward'),
        (21, None, 'gradient', 'allocated in backward'),
        (31, 32, 'temporary', 'same phase'),
        (31, None, 'optimizer_state', 'by the optimizer, not freed'),
        (31, 51, 'temporary', 'by the optimizer, freed in a later phase'),
        (41, None, 'unknown', 'no rule'),
    ],
)
def test_phases_tell_a_category(born: int, died: int | None, category: str, rule: str) -> None:
    released = [] if died is None else freed(512, 8, [FRAME], died)
    found, told = category_of(plain(event('alloc', 512, 8, [FRAME], born), *released, phases=PHASES))
    assert found == category
    assert rule in told


def test_a_second_microbatch_does_not_make_an_activation_temporary() -> None:
    phases = [[0, 1, 'forward'], [10, 1, 'backward'], [20, 1, 'forward'], [30, 1, 'backward']]
    found, _ = category_of(plain(event('alloc', 512, 8, time=5), *freed(512, 8, time=25), phases=phases))
    assert found == 'activation'


@pytest.mark.parametrize(
    ('made', 'released', 'category'),
    [
        ([FORWARD, FRAME], [BACKWARD, FRAME], 'activation'),
        ([FORWARD, FRAME, OPTIMIZER], [BACKWARD, FRAME, OPTIMIZER], 'activation'),  # Composer's closure
        ([FORWARD, FRAME], [FRAME], 'temporary'),
        ([FORWARD, FRAME], None, 'activation'),
        ([BACKWARD, FRAME], [ZERO_GRAD, FRAME], 'gradient'),
        ([BACKWARD, FRAME], None, 'gradient'),
        ([BACKWARD, FRAME], [BACKWARD, FRAME], 'temporary'),
        ([OPTIMIZER, FRAME], None, 'optimizer_state'),
        ([FRAME, TRAINER, OPTIMIZER], None, 'unknown'),  # the batch's copy, within Composer's closure
        ([OPTIMIZER, FRAME], [OPTIMIZER, FRAME], 'temporary'),
        ([LOADER, FRAME], [FRAME], 'input'),
        ([INIT, FRAME], None, 'parameter'),
        ([FRAME], [FRAME], 'unknown'),
    ],
)
def test_stacks_tell_a_category_where_there_are_no_phases(made: Any, released: Any, category: str) -> None:
    events = [event('alloc', 512, 8, made)] + ([] if released is None else freed(512, 8, released))
    found, rule = category_of(plain(*events))
    assert found == category
    assert rule.startswith('by stack') == (category != 'unknown')
    (note,) = answer(plain(*events)).notes
    assert 'no phases' in note


def test_without_frames_where_others_have_some_it_is_a_thread_of_backward() -> None:
    content = plain(
        event('segment_alloc', 0, 4096),
        event('alloc', 1024, 1, [FORWARD, FRAME]),
        event('alloc', 512, 80, []),
        *freed(1024, 1, []),
        segments=[segment((512, 80))],
    )
    found = {holder.bytes: holder.category for holder in device(content).peak.holders}
    assert found == {80: 'gradient', 1: 'activation'}


def test_a_tensor_that_was_seen_counts_more_than_phase_and_stack() -> None:
    content = plain(
        event('alloc', 512, 100, [FORWARD, FRAME], 11),
        event('alloc', 1024, 50, [FORWARD, FRAME], 12),
        *freed(1024, 50, time=13),
        event('alloc', 1024, 60, [FORWARD, FRAME], 14),
        segments=[segment((512, 100), (1024, 60), (2048, 9))],
        phases=PHASES,
        tensors=[
            [0, 2048, 9, 'parameter', 'net.0.weight'],
            [15, 540, 20, 'gradient', 'net.1.weight'],  # a view into the block
            [15, 1024, 60, 'optimizer_state', 'net.1.weight.exp_avg'],
            [15, 4096, 60, 'input', 'of another device'],
        ],
    )
    peak = device(content).peak
    assert {share.category: share.bytes for share in peak.categories} == {
        'gradient': 100,
        'optimizer_state': 60,
        'parameter': 9,
    }
    assert {share.rules[0].rule for share in peak.categories} == {'a tensor of this category was seen in it'}
    assert {share.module: share.bytes for share in peak.modules} == {'net.1': 100, 'net.1.weight': 60, 'net.0': 9}


def test_a_block_belongs_to_the_module_that_ran() -> None:
    content = plain(
        event('alloc', 512, 3, time=5),
        {**event('alloc', 1024, 5, time=6), 'module': 'head'},
        event('alloc', 2048, 7, time=15),
        modules=[[4, 'net.0'], [10, '']],
    )
    assert {share.module: share.bytes for share in device(content).peak.modules} == {'net.0': 3, 'head': 5, '': 7}


def test_the_users_own_frames_come_first_and_torchs_are_folded() -> None:
    frames = [Frame(frame['filename'], frame['line'], frame['name']) for frame in (TORCH, FRAME, BACKWARD)]
    assert own_frames(tuple(frames)) == (frames[1],)
    (holder,) = device(plain(event('alloc', 512, 8, [TORCH, FRAME, BACKWARD]))).peak.holders
    assert (len(holder.frames), holder.folded) == (1, 2)


def test_a_line_that_steps_an_optimizer_is_told_with_the_frame_of_torch_that_asked() -> None:
    state = {**OPTIMIZER, 'line': 120, 'name': '_init_group'}
    content = plain(
        event('alloc', 512, 8, [state, OPTIMIZER, FRAME]),
        event('alloc', 1024, 4, [OPTIMIZER, FRAME]),
        event('alloc', 2048, 2, [TORCH, FORWARD, FRAME]),
    )
    holders = device(content).peak.holders
    assert [(holder.bytes, holder.within and holder.within.name) for holder in holders] == [
        *((8, '_init_group'), (4, 'step'), (2, None))
    ]
    assert {holder.frames[0].name for holder in holders} == {FRAME['name']}
    assert [holder.folded for holder in holders] == [1, 0, 2]
    assert summary_of(answer(content)).devices[0].holders[0].at == [
        'adamw.py:120 _init_group',
        'train.py:7 step',
    ]


@pytest.mark.parametrize(
    'generated',
    [
        '/tmp/torchinductor_me/x4/cx4hy6kvewxjq5ioxvllhsdq5yzyrmkygpd3ww4j5vjqmcz7pvkl.py',
        '/scratch/cache/4v/c4vq2ulvwzmvyt4lrnvyhiimm27hqjlxjf2zxsfrpufrm2hzl6te.py',
        '/home/me/.triton/cache/ab12/kernel.py',
        '<eval_with_key>.3',
    ],
)
def test_code_that_a_compiler_generated_is_folded(generated: str) -> None:
    call = {'filename': generated, 'line': 7, 'name': 'call'}
    inductor = {'filename': f'{SITE}/_inductor/utils.py', 'line': 1, 'name': 'run'}
    (holder,) = device(plain(event('alloc', 512, 8, [call, inductor, FORWARD, FRAME]))).peak.holders
    assert [frame.filename for frame in holder.frames] == [FRAME['filename']]
    assert holder.category == 'activation' and holder.within is not None and holder.within.name == 'run'


def test_a_function_that_autograd_calls_in_its_thread_is_backward() -> None:
    applies = {'filename': f'{SITE}/autograd/function.py', 'line': 1, 'name': 'apply'}
    runs = {'filename': f'{SITE}/_functorch/_aot_autograd/runtime_wrappers.py', 'line': 1, 'name': 'call_func'}
    call = {'filename': '/tmp/torchinductor_me/ab/x.py', 'line': 7, 'name': 'call'}
    assert category_of(plain(event('alloc', 512, 8, [call, runs, applies])))[0] == 'gradient'
    assert category_of(plain(event('alloc', 512, 8, [applies, FRAME])))[0] == 'unknown', 'called by the user'


def test_backward_without_python_frames_is_told_by_its_node() -> None:
    names = (
        'at::_ops::bmm::call(x)',
        'torch::autograd::VariableType::bmm(x)',
        'torch::autograd::MmBackward0::apply(x)',
    )
    cpp = [{'filename': '??', 'line': 0, 'name': name} for name in names]
    (holder,) = device(plain(event('alloc', 512, 8, cpp))).peak.holders
    assert holder.within is not None and holder.within.name == 'torch::autograd::MmBackward0::apply'


def test_inspect_prints_the_frame_that_asked() -> None:
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(report_text(answer(plain(event('alloc', 512, 8, [OPTIMIZER, FRAME]), oom={'message': 'none left'}))))
    printed = console.export_text()
    assert '(in torch: torch/optim/adamw.py:1 step)' in printed
    assert 'none left' in printed


def test_where_there_is_no_stack_the_module_that_ran_is_named() -> None:
    found = answer(without_stacks())
    (device,) = found.devices
    assert [(holder.bytes >> 20, holder.category, holder.module, holder.before) for holder in device.peak.holders] == [
        (8, 'temporary', 'blocks.1', False),
        (6, 'gradient', '', False),
        (4, 'parameter', '', True),
        (2, 'temporary', 'blocks.0', False),
    ]
    console = Console(file=io.StringIO(), width=80)
    console.print(report_text(found))
    assert 'no stack; module blocks.1 ran' in console.file.getvalue()


# -- reserved and fragmentation -----------------------------------------------------------------------------------


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


# -- growth, and the end of memory --------------------------------------------------------------------------------


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
