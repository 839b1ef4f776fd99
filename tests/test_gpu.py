"""What a CUDA device alone can show."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch

from composer_memprof import MemorySnapshot, TorchProfiler
from composer_memprof.recorders.allocator_history import AllocatorHistory
from tests.conftest import entries, train

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
