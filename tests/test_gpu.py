"""What a CUDA device alone can show."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.core import Callback

from composer_memprof import MemorySnapshot, TorchProfiler
from composer_memprof.analysis.answer import answer_of
from composer_memprof.analysis.snapshot_file import load_snapshot
from composer_memprof.recorders.allocator_history import AllocatorHistory
from tests.conftest import entries, train, wait_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device'),
]
RUN = Path('test-run/torch_traces')


def test_a_snapshot_holds_the_allocators_history_with_python_frames() -> None:
    train(MemorySnapshot(), device='gpu')
    snapshot = pickle.loads((RUN / 'rank0.4.memory_snapshot.pickle').read_bytes())
    events = [event for trace in snapshot['device_traces'] for event in trace]
    assert {'alloc', 'free_completed'} <= {event['action'] for event in events}
    assert any('conftest.py' in frame['filename'] for event in events for frame in event.get('frames', []))
    assert (RUN / 'rank0.4.memory_snapshot.html').exists()


def test_recording_off_means_off() -> None:
    train(MemorySnapshot(), device='gpu')
    before = sum(len(trace) for trace in torch.cuda.memory._snapshot()['device_traces'])
    torch.empty(1 << 20, device='cuda')
    assert sum(len(trace) for trace in torch.cuda.memory._snapshot()['device_traces']) == before


def test_the_recorder_works_without_a_trainer() -> None:
    with AllocatorHistory(1000) as history:
        torch.empty(12345, device='cuda')
    assert history.snapshot is not None
    assert any(event['size'] == 49380 for event in history.snapshot['device_traces'][0])


def test_a_trace_holds_the_devices_kernels_and_snapshots_do_not_clash_with_it() -> None:
    train(TorchProfiler(schedule={'active': '2ba'}), MemorySnapshot(schedule={'active': '2ba'}), device='gpu')
    trace = json.loads((RUN / 'rank0.2.pt.trace.json').read_text())
    assert any(event.get('cat') == 'kernel' for event in trace['traceEvents'])
    assert {entry.kind for entry in entries(RUN)} >= {'torch_profiler', 'memory_snapshot'}


def test_memory_over_time_is_of_the_device() -> None:
    callback = TorchProfiler(
        schedule={'active': '2ba'}, record_shapes=True, with_stack=True, memory_filename='{rank}.memory.html'
    )
    train(callback, device='gpu')
    assert 'Memory over time on cuda:0' in (RUN / '0.memory.html').read_text()


def test_the_allocator_itself_tells_when_memory_runs_out() -> None:
    class Fills(Callback):
        def before_loss(self, state: Any, logger: Any) -> None:
            if state.timestamp.batch == 6:
                torch.empty(1 << 50, dtype=torch.uint8, device='cuda')

    torch.cuda.set_per_process_memory_fraction(0.1)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            train(MemorySnapshot(on_oom=True), Fills(), device='gpu')
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    stem = RUN / 'rank0.6.memory_snapshot.oom'
    wait_for(stem.with_suffix('.oom.summary.json').exists, 60)
    summary = json.loads(stem.with_suffix('.oom.summary.json').read_text())
    assert summary['oom']['requested'] == 1 << 50
    assert summary['devices'][0]['peak']['batch'] is not None


def test_modules_and_phases_place_what_the_device_holds() -> None:
    train(MemorySnapshot(), device='gpu')
    snapshot = load_snapshot(RUN / 'rank0.4.memory_snapshot.pickle')
    assert {'net.0', 'net.2'} <= {snapshot.modules[index] for index in set(snapshot.devices[0].module.tolist())}
    (answer,) = answer_of(snapshot).devices
    assert answer.peak.batch in (1, 2, 3)


def test_allocation_is_as_fast_after_a_window_as_before_it() -> None:
    def seconds() -> float:
        begin = time.perf_counter()
        for _ in range(20_000):
            torch.empty(1000, device='cuda')
        return time.perf_counter() - begin

    seconds()
    before = min(seconds() for _ in range(5))
    train(MemorySnapshot(), device='gpu')
    assert min(seconds() for _ in range(5)) < 1.5 * before
