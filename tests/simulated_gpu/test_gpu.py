"""Tests that need a CUDA device, or torch's allocator on a simulated one."""

from __future__ import annotations

import json
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.core import Callback

from composer_memprof import (
    Flops,
    FSDPMemTracker,
    HostRSS,
    MemorySnapshot,
    MemProfiler,
    Memray,
    SavedTensorsHook,
    StepTimes,
    TorchProfiler,
    VizTracer,
)
from composer_memprof.analysis.memory.blocks.lifetimes import lifetimes
from composer_memprof.analysis.memory.categories.categories import CATEGORIES
from composer_memprof.analysis.memory.pictures.timeline import timeline_of
from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot, read_snapshot
from composer_memprof.analysis.snapshot.model import ALLOC
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.allocations.allocator_history import AllocatorHistory
from composer_memprof.recorders.modules.recorder import ModuleMemoryRecorder
from composer_memprof.simulated_gpu.this_process import simulated_device
from tests.conftest import entries, json_lines, make_trainer, train, wait_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device'),
]
RUN = Path('test-run/torch_traces')
runs_kernels = pytest.mark.skipif(simulated_device() is not None, reason='needs a device that runs kernels')


def train_on_gpu(*callbacks: Any, **more: Any) -> Any:
    # A number of batches needs no value from the device; an epoch's end does.
    return train(*callbacks, device='gpu', **{'max_duration': '12ba', **more})


def test_a_snapshot_holds_the_allocators_history_with_python_frames() -> None:
    train_on_gpu(MemorySnapshot())
    snapshot = pickle.loads((RUN / 'rank0.4.memory_snapshot.pickle').read_bytes())
    events = [event for trace in snapshot['device_traces'] for event in trace]
    assert {'alloc', 'free_completed'} <= {event['action'] for event in events}
    assert any('small_training.py' in frame['filename'] for event in events for frame in event.get('frames', []))
    assert (RUN / 'rank0.4.memory_snapshot.html').exists()


def test_recording_off_means_off() -> None:
    train_on_gpu(MemorySnapshot())
    before = sum(len(trace) for trace in torch.cuda.memory._snapshot()['device_traces'])
    torch.empty(1 << 20, device='cuda')
    assert sum(len(trace) for trace in torch.cuda.memory._snapshot()['device_traces']) == before


def test_the_recorder_works_without_a_trainer() -> None:
    with AllocatorHistory(1000) as history:
        torch.empty(12345, device='cuda')
    assert history.snapshot is not None
    assert any(event['size'] == 49380 for event in history.snapshot['device_traces'][0])


@runs_kernels
def test_a_trace_holds_the_devices_kernels_and_snapshots_do_not_clash_with_it() -> None:
    train_on_gpu(TorchProfiler(schedule={'active': '2ba'}), MemorySnapshot(schedule={'active': '2ba'}))
    trace = json.loads((RUN / 'rank0.2.pt.trace.json').read_text())
    assert any(event.get('cat') == 'kernel' for event in trace['traceEvents'])
    assert {entry.kind for entry in entries(RUN)} >= {'torch_profiler', 'memory_snapshot'}


def test_memory_over_time_is_of_the_device() -> None:
    callback = TorchProfiler(
        schedule={'active': '2ba'}, record_shapes=True, with_stack=True, memory_filename='{rank}.memory.html'
    )
    train_on_gpu(callback)
    assert 'Memory over time on cuda:0' in (RUN / '0.memory.html').read_text()


def test_the_allocator_itself_tells_when_memory_runs_out(tmp_path: Path) -> None:
    class Fills(Callback):
        def before_loss(self, state: Any, logger: Any) -> None:
            if state.timestamp.batch == 6:
                torch.empty(1 << 50, dtype=torch.uint8, device='cuda')

    torch.cuda.set_per_process_memory_fraction(0.1)
    store = tmp_path / 'store'
    try:
        with pytest.raises(torch.OutOfMemoryError, match='Tried to allocate'):
            train_on_gpu(MemorySnapshot(on_oom=True, remote_file_name=f'file://{store}'), Fills())
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    stem = 'rank0.6.memory_snapshot.oom'
    names = [f'{stem}.pickle', f'{stem}.html', f'{stem}.summary.json']
    for name in names:
        wait_for((store / name).exists, 60)
        assert (store / name).read_bytes() == (RUN / name).read_bytes()
    summary = json.loads((RUN / names[2]).read_text())
    assert summary['oom']['requested'] == 1 << 50
    assert summary['devices'][0]['peak']['batch'] is not None


def test_modules_and_phases_place_what_the_device_holds() -> None:
    train_on_gpu(MemorySnapshot())
    snapshot = load_snapshot(RUN / 'rank0.4.memory_snapshot.pickle')
    assert {'net.0', 'net.2'} <= {snapshot.modules[index] for index in set(snapshot.devices[0].module.tolist())}
    (answer,) = report_on(snapshot).devices
    assert answer.peak.batch in (1, 2, 3)


def test_the_backwards_allocations_have_their_modules_though_its_thread_has_no_stacks() -> None:
    train_on_gpu(MemorySnapshot(schedule={'skip': '2ba', 'active': '2ba'}))
    snapshot = load_snapshot(RUN / 'rank0.4.memory_snapshot.pickle')
    (history,) = snapshot.devices
    stackless = (history.action == ALLOC) & (history.stack == 0)
    assert {'net.0', 'net.2'} <= {snapshot.modules[index] for index in set(history.module[stackless].tolist())}


class PeakBytes(Callback):
    """The peak of the batches from ``first`` to ``last``, by the allocator's own counters."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.peak = 0

    def batch_start(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch.value == self.first:
            torch.cuda.reset_peak_memory_stats()

    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch.value == self.last + 1:
            self.peak = torch.cuda.max_memory_allocated()


def test_the_peak_of_a_window_is_the_allocators_own_but_for_its_rounding() -> None:
    by_counter = PeakBytes(2, 4)
    train_on_gpu(MemorySnapshot(schedule={'skip': '2ba', 'active': '3ba'}), by_counter)
    snapshot = load_snapshot(RUN / 'rank0.5.memory_snapshot.pickle')
    (answer,) = report_on(snapshot).devices
    blocks = lifetimes(snapshot.devices[0])
    # The history has the requested sizes of freed blocks; the allocator rounds them up to multiples of 512.
    transient = blocks.size[blocks.allocated_after(answer.peak.event)] % 512 > 0
    assert 0 <= by_counter.peak - answer.peak.bytes <= 512 * transient.sum()
    assert answer.peak.bytes > 0


def test_windows_that_touch_each_hold_their_own_batch() -> None:
    train_on_gpu(MemorySnapshot(schedule={'skip': '2ba', 'active': '1ba', 'every': '1ba', 'repeat': 3}))
    for batch in (3, 4, 5):
        snapshot = load_snapshot(RUN / f'rank0.{batch}.memory_snapshot.pickle')
        forward = snapshot.phases.name == snapshot.phases.names.index('forward')
        assert set(snapshot.phases.batch[forward].tolist()) == {batch - 1}
        assert len(snapshot.devices[0].size) > 10


@pytest.mark.slow
def test_a_thread_that_allocates_all_the_while_costs_no_snapshot() -> None:
    done = threading.Event()

    def allocate() -> None:
        while not done.is_set():
            [torch.empty(1000, device='cuda') for _ in range(50)]

    thread = threading.Thread(target=allocate)
    thread.start()
    try:
        train_on_gpu(
            MemorySnapshot(schedule={'skip': '1ba', 'active': '1ba', 'every': '2ba'}, on_full='wait'), batches=20
        )
    finally:
        done.set()
        thread.join()
    assert {entry.status for entry in entries(RUN)} == {'saved'}


def test_where_nothing_can_be_forked_the_snapshot_is_taken_before_the_history_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, 'fork', lambda: (_ for _ in ()).throw(OSError('no more processes')))
    train_on_gpu(MemorySnapshot())
    assert len(load_snapshot(RUN / 'rank0.4.memory_snapshot.pickle').devices[0].size) > 10


def test_mem_profiler_keeps_the_allocators_history_at_both_ends_of_a_call() -> None:
    train_on_gpu(MemProfiler(cuda_allocator_history=True, warmup_iters=1, max_iter=3))
    found = [entry for entry in entries(Path('test-run')) if entry.kind == 'mem_profiler.cuda_alloc']
    assert {entry.status for entry in found} == {'saved'}
    start, end = (f'cuda_alloc_rank_0.training_step.2.{moment}.pickle' for moment in ('start', 'end'))
    (folder,) = {path.parent for path in Path('test-run').rglob(start)}
    begun, ended = (len(load_snapshot(folder / name).devices[0].size) for name in (start, end))
    assert ended > begun


def active_blocks(snapshot: dict[str, Any]) -> dict[int, dict[str, Any]]:
    blocks = [block for segment in snapshot['segments'] for block in segment['blocks']]
    return {block['address']: block for block in blocks if block['state'] == 'active_allocated'}


def test_mem_profilers_allocator_history_begins_before_the_model_is_on_the_device() -> None:
    before = active_blocks(torch.cuda.memory._snapshot())
    train_on_gpu(MemProfiler(cuda_allocator_history=True))
    (start,) = Path('test-run').rglob('cuda_alloc_rank_0.training_step.2.start.pickle')
    blocks = [
        block for address, block in active_blocks(pickle.loads(start.read_bytes())).items() if address not in before
    ]
    moved = [block for block in blocks if any(frame['name'] == 'module_to_device' for frame in block['frames'])]
    assert len(moved) == 4, 'the parameters'


def test_the_history_of_a_mem_profiler_that_is_not_used_ends_with_it() -> None:
    profiler = MemProfiler(cuda_allocator_history=True)
    torch.empty(1 << 20, device='cuda')
    assert any(torch.cuda.memory._snapshot()['device_traces'])
    del profiler
    assert not any(torch.cuda.memory._snapshot()['device_traces'])


@runs_kernels
def test_a_compiled_model_is_timed_and_the_reason_is_said() -> None:
    with pytest.warns(MemprofWarning, match='torch cannot compute beside a GPU.*compile_config=None'):
        train_on_gpu(Flops(), compile_config={'backend': 'eager'})
    (path,) = Path('test-run/memprof').glob('*.flops.json')
    data = json.loads(path.read_text())
    assert data['batch_flops'] is None and data['batches']['timed'] > 0


def test_all_nine_callbacks_leave_their_files() -> None:
    trainer = make_trainer(
        MemProfiler(),
        HostRSS(),
        Flops(),
        SavedTensorsHook(schedule={'skip': '2ba', 'active': '1ba'}),
        FSDPMemTracker(schedule={'skip': '4ba', 'active': '2ba'}),
        MemorySnapshot(schedule={'skip': '6ba', 'active': '2ba'}),
        TorchProfiler(schedule={'skip': '8ba', 'active': '2ba'}),
        Memray(schedule={'skip': '11ba', 'active': '1ba'}),
        VizTracer(schedule={'skip': '13ba', 'active': '1ba'}),
        device='gpu',
        max_duration='16ba',
        batches=20,
    )
    trainer.fit()
    trainer.close()
    found = [entry for entry in entries(Path('test-run')) if entry.status != 'removed']
    assert {entry.status for entry in found} == {'saved'}
    assert {entry.kind.split('.')[0] for entry in found} == {
        *('mem_profiler', 'host_rss', 'flops', 'saved_tensors_hook', 'fsdp_mem_tracker', 'memory_snapshot'),
        *('torch_profiler', 'memray', 'viztracer'),
    }
    (path,) = [entry.path for entry in found if entry.kind == 'fsdp_mem_tracker.json']
    peak = json.loads((Path('test-run/memprof') / path).read_text())['peak']
    assert peak['cuda:0']['Total'] == sum(size for name, size in peak['cuda:0'].items() if name != 'Total')
    assert peak['cuda:0']['Parameter'] == 4 * (16 * 32 + 32 + 32 + 1)


def test_the_times_of_phases_are_the_devices_own() -> None:
    train_on_gpu(StepTimes())
    (entry,) = entries(Path('test-run'), 'step_times')
    lines = json_lines(Path('test-run/memprof') / entry.path)
    assert [line['batch'] for line in lines] == list(range(12))
    assert {line['clock'] for line in lines} == {'cuda'}
    assert all(line['total'] > 0 and len(line['forward']) == 1 for line in lines)


def test_a_snapshot_without_our_notes_tells_parameters_gradients_and_adams_state() -> None:
    left = torch.cuda.memory_allocated()  # by other tests: it is recognized by its stacks, and counts too
    width = 200
    model = torch.nn.Sequential(torch.nn.Linear(width, 3 * width), torch.nn.GELU(), torch.nn.Linear(3 * width, width))
    model.to('cuda')
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step() -> None:
        with torch.autocast('cuda', dtype=torch.bfloat16):
            loss = model(torch.zeros(64, width, device='cuda')).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    try:
        torch.cuda.memory._record_memory_history(stacks='python')
        step()
        step()
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(None)
    read = read_snapshot(snapshot)
    (device,) = report_on(read).devices
    # Each is a block of its own, rounded up.
    parameters = sum(-(-parameter.nbytes // 512) * 512 for parameter in model.parameters())
    found = {share.category: share.bytes for share in device.peak.categories}
    held = {category: found.get(category, 0) for category in ('parameter', 'optimizer_state', 'gradient')}
    timeline = timeline_of(read, read.devices[0], spans=1)
    gradients = timeline.blocks[timeline.blocks['category'] == CATEGORIES.index('gradient')]

    def gradients_at(moment: int) -> int:
        return int(gradients['size'][(gradients['born'] <= moment) & (moment < gradients['died'])].sum())

    # The peak may be in the midst of backward, where torch 2.15 allocates cuBLAS' workspace: some gradients come later.
    assert held['gradient'] == gradients_at(timeline.peak)
    assert parameters * 0.99 <= gradients_at(gradients['died'].min() - 1) <= parameters
    assert parameters * 0.99 <= held['parameter'] <= parameters + left
    assert 2 * parameters * 0.99 <= held['optimizer_state'] <= 2 * parameters + left
    assert not any(share.category == 'unknown' and share.bytes > 0.5 * parameters for share in device.peak.categories)


def test_with_what_is_not_seen_the_tensors_make_up_the_allocators_peak() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    recorder = ModuleMemoryRecorder(model, [optimizer])
    inputs = torch.ones(64, 512, device='cuda')

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        recorder.begin_optimizer()
        optimizer.step()
        recorder.end_optimizer()

    step()
    torch.cuda.reset_peak_memory_stats()
    with recorder:
        step()
    memory = recorder.result
    assert memory is not None
    not_seen = memory.not_seen['cuda:0']
    assert not_seen.start > 0, "cuBLAS' workspace"
    assert not_seen.inside is not None
    highest = torch.cuda.memory_stats()['requested_bytes.all.peak']
    assert memory.peak['cuda:0']['Total'] + not_seen.peak + not_seen.inside == highest
