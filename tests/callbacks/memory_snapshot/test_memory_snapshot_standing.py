"""MemorySnapshot on a CPU: what stood before the window counts."""

from __future__ import annotations

import io
import json
import pickle
import resource
from typing import Any

import torch
from composer.core import Callback
from rich.console import Console

from composer_memprof import MemorySnapshot
from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.messages import human_bytes
from composer_memprof.recorders.allocations.cpu_allocations import PROFILE_ARGUMENTS, snapshot_of
from composer_memprof.recorders.allocations.standing_blocks import StandingBlocks
from composer_memprof.recorders.kineto import KinetoRecorder
from composer_memprof.report.text.terminal.snapshot_tables import report_text
from tests.conftest import train
from tests.support.recordings.memory_snapshots import RUN, Tied


class Held(Callback):
    """The bytes of the storages that are known between two batches, each once."""

    def __init__(self) -> None:
        self.bytes: dict[int, int] = {}

    def batch_start(self, state: Any, logger: Any) -> None:
        tensors = [*state.model.parameters(), *state.model.buffers(), *state.batch, state.outputs, state.loss]
        tensors += [parameter.grad for parameter in state.model.parameters()]
        tensors += [value for values in state.optimizers[0].state.values() for value in values.values()]
        storages = [tensor.untyped_storage() for tensor in tensors if isinstance(tensor, torch.Tensor)]
        self.bytes[state.timestamp.batch.value] = sum(
            {storage.data_ptr(): storage.nbytes() for storage in storages}.values()
        )


def test_on_a_cpu_the_peak_counts_what_stood_before_the_window_each_storage_once() -> None:
    held, model = Held(), Tied()
    train(held, MemorySnapshot(schedule={'skip': '3ba', 'active': '2ba'}), model=model)
    report = report_on(load_snapshot(RUN / 'rank0.5.memory_snapshot.pickle'))
    (device,) = report.devices
    assert device.allocated_at_start == held.bytes[3] == held.bytes[4]
    snapshot = pickle.loads((RUN / 'rank0.5.memory_snapshot.pickle').read_bytes())
    running = peak = 0
    for event in snapshot['device_traces'][0]:
        running += {'alloc': 1, 'free_completed': -1}.get(event['action'], 0) * event['size']
        peak = max(peak, running)
    assert device.peak.bytes == held.bytes[3] + peak
    sizes = {share.category: share.bytes for share in device.peak.categories}
    parameters = sum(4 * parameter.numel() for parameter in model.parameters())
    steps = 4 * len(list(model.parameters()))
    assert (sizes['parameter'], sizes['gradient'], sizes['buffer']) == (parameters, parameters, 4000)
    assert sizes['optimizer_state'] == 2 * parameters + steps
    assert not {name for name, _ in model.named_parameters()} & {share.module for share in device.peak.modules}
    assert any('of the memory that was allocated before the recording only parameters' in note for note in report.notes)


def test_on_a_cpu_the_resident_memory_stands_beside_the_peak() -> None:
    train(MemorySnapshot())
    path = RUN / 'rank0.4.memory_snapshot.pickle'
    (device,) = report_on(load_snapshot(path)).devices
    assert device.rss_peak is not None
    assert device.peak.bytes < device.rss_peak <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + (16 << 20)
    shown = f'{human_bytes(device.rss_peak)} resident in the process (RSS)'
    console = Console(file=io.StringIO(), width=200)
    console.print(report_text(report_on(load_snapshot(path))))
    assert (
        console.file.getvalue().splitlines()[0]
        == f'Peak of device 0: {human_bytes(device.peak.bytes)} allocated, {shown}'
    )  # type: ignore[attr-defined]
    assert 'resident in the process (RSS)' in (RUN / 'rank0.4.memory_snapshot.html').read_text()
    assert json.loads((RUN / 'rank0.4.memory_snapshot.summary.json').read_text())['devices'][0]['rss_peak']


def test_on_a_cpu_too_max_entries_keeps_the_last_events_and_all_that_is_allocated_at_the_end() -> None:
    train(MemorySnapshot(), MemorySnapshot(max_entries=40, filename='last'))
    everything, last = (load_snapshot(RUN / name) for name in ('rank0.4.memory_snapshot.pickle', 'last.pickle'))
    assert len(last.devices[0].action) == 40 < len(everything.devices[0].action)
    assert last.devices[0].address.tolist() == everything.devices[0].address[-40:].tolist()
    ends = [report_on(snapshot).devices[0].allocated_at_end for snapshot in (everything, last)]
    assert ends[0] == ends[1] > 0
    (note,) = [note for note in report_on(last).notes if 'max_entries' in note]
    assert 'last 40 events' in note
    assert not any('max_entries' in note for note in report_on(everything).notes)


def test_storages_that_stood_before_are_followed_to_their_free_and_not_kept_alive() -> None:
    gone, resized, stays = (torch.zeros(size) for size in (10, 20, 30))
    tensors = [gone, gone[5:], resized, stays, torch.zeros(8, device='meta')]
    standing = StandingBlocks(tensors, resized=lambda: [resized])
    addresses = [tensor.data_ptr() for tensor in (gone, resized)]
    assert sorted(standing.blocks.values()) == [40, 80, 120]
    del tensors, gone
    resized.untyped_storage().resize_(0)
    standing.look()
    assert [free.address for free in standing.freed] == addresses
    standing.leave()
    del stays
    assert len(standing.freed) == 2


def test_a_free_has_the_size_of_the_block_even_if_an_earlier_session_saw_another_block_at_its_address() -> None:
    with KinetoRecorder(**PROFILE_ARGUMENTS):
        seen = [torch.empty(512) for _ in range(200)]
    addresses = {tensor.data_ptr() for tensor in seen}
    del seen  # outside of a session: torch's profiler goes on to believe in these blocks
    others = [torch.empty(256) for _ in range(2000)]
    there = next(tensor for tensor in others if tensor.data_ptr() in addresses)
    address, standing = there.data_ptr(), StandingBlocks([there])
    with KinetoRecorder(**PROFILE_ARGUMENTS) as recorder:
        del there, others
    snapshot = snapshot_of(recorder.result, standing=standing)
    sizes = [event['size'] for event in snapshot['device_traces'][0] if event['addr'] == address]
    assert sizes == [1024, 1024], 'the request to free, and the free'
