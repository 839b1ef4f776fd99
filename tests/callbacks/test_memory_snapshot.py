"""MemorySnapshot: as Composer's, also on a CPU and with any number of windows."""

from __future__ import annotations

import contextlib
import functools
import gc
import gzip
import io
import itertools
import json
import os
import pickle
import resource
import shutil
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.core import Callback, Time
from composer.loggers import RemoteUploaderDownloader
from composer.profiler import JSONTraceHandler, Profiler, cyclic_schedule
from rich.console import Console
from torch.utils.checkpoint import checkpoint

from composer_memprof import MemorySnapshot, TorchProfiler
from composer_memprof.analysis.memory.blocks.lifetimes import lifetimes
from composer_memprof.analysis.memory.categories.categories import CATEGORIES, categories
from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.messages import human_bytes
from composer_memprof.recorders.allocations import out_of_memory
from composer_memprof.recorders.allocations.annotations import Annotations
from composer_memprof.recorders.allocations.cpu_allocations import PROFILE_ARGUMENTS, snapshot_of
from composer_memprof.recorders.allocations.out_of_memory import is_out_of_memory, parse_out_of_memory
from composer_memprof.recorders.allocations.standing_blocks import StandingBlocks
from composer_memprof.recorders.kineto import KinetoRecorder
from composer_memprof.recorders.torch_private import cuda_allocator
from composer_memprof.report.text.terminal.snapshot_tables import report_text
from tests.callbacks.test_fsdp_mem_tracker import run_python
from tests.conftest import FEATURES, Regression, entries, loader, make_trainer, train

RUN = Path('test-run/torch_traces')


def live_peak(snapshot: dict[str, Any]) -> int:
    """The largest sum of live bytes, computed event by event."""
    live = peak = 0
    seen: dict[int, int] = {}
    for event in snapshot['device_traces'][0]:
        if event['action'] == 'alloc':
            live += event['size']
            seen[event['addr']] = event['size']
        elif event['action'] == 'free_completed' and event['addr'] in seen:
            live -= seen.pop(event['addr'])
        peak = max(peak, live)
    return peak


def record(function: Any) -> tuple[dict[str, Any], KinetoRecorder]:
    with KinetoRecorder(**PROFILE_ARGUMENTS) as recorder:
        function()
    assert recorder.result is not None
    return snapshot_of(recorder.result), recorder


def allocate() -> None:
    kept = [torch.empty(1000, dtype=torch.float32) for _ in range(3)]
    torch.empty(5000, dtype=torch.float32)
    kept.append(torch.empty(10, dtype=torch.float32))


def test_on_a_cpu_each_allocation_has_its_size_and_the_callers_frame() -> None:
    snapshot, _ = record(allocate)
    sizes = [event['size'] for event in snapshot['device_traces'][0] if event['action'] == 'alloc']
    assert sizes.count(4000) == 3
    assert sizes.count(20000) == 1
    assert live_peak(snapshot) == 3 * 4000 + 20000
    frames = next(e['frames'] for e in snapshot['device_traces'][0] if e['size'] == 20000)
    assert frames[0]['name'] == 'allocate'
    assert frames[0]['filename'].endswith('test_memory_snapshot.py')
    source = Path(__file__).read_text().splitlines()
    assert 'torch.empty(5000' in source[frames[0]['line'] - 1]


def test_its_peak_is_the_profilers_own_running_total() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))

    def step() -> None:
        model(torch.randn(32, 64)).sum().backward()

    snapshot, recorder = record(step)
    assert recorder.result is not None
    from torch._C._profiler import _EventType

    totals, pending = [], list(recorder.result.events())
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if event.tag == _EventType.Allocation:
            totals.append((event.start_time_ns, event.extra_fields))
    totals.sort(key=lambda total: total[0])
    before = totals[0][1].total_allocated - totals[0][1].alloc_size
    assert live_peak(snapshot) == max(fields.total_allocated for _, fields in totals) - before


def test_what_is_live_at_the_end_is_in_the_segments() -> None:
    kept: list[torch.Tensor] = []
    snapshot, _ = record(lambda: kept.append(torch.empty(777)))
    (segment,) = [segment for segment in snapshot['segments'] if segment['total_size'] == 777 * 4]
    assert segment['address'] == kept[0].untyped_storage().data_ptr()
    assert segment['blocks'][0]['state'] == 'active_allocated'


def test_the_page_can_be_left_out() -> None:
    train(MemorySnapshot(page=False))
    assert {entry.kind for entry in entries(Path('test-run'))} == {'memory_snapshot', 'memory_snapshot.summary'}
    assert not list(RUN.glob('*.html'))
    with pytest.raises(ValueError, match="page must be true or false, not 'no'"):
        MemorySnapshot(page='no')  # type: ignore[arg-type]


def test_a_window_leaves_a_protocol_4_pickle_of_plain_values_and_a_page() -> None:
    train(MemorySnapshot())
    content = (RUN / 'rank0.4.memory_snapshot.pickle').read_bytes()
    assert content[:2] == b'\x80\x04'

    class Plain(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            raise AssertionError(f'{module}.{name} in the pickle')

    snapshot = Plain(io.BytesIO(content)).load()
    assert set(snapshot) >= {'segments', 'device_traces'}
    assert len(snapshot['device_traces'][0]) > 50
    assert '<script' in (RUN / 'rank0.4.memory_snapshot.html').read_text()


def test_torchs_own_tools_read_it() -> None:
    from torch.cuda._memory_viz import segsum, trace

    train(MemorySnapshot(compress=True))
    snapshot = pickle.loads(gzip.decompress((RUN / 'rank0.4.memory_snapshot.pickle.gz').read_bytes()))
    assert 'segments' in segsum(snapshot)
    assert 'TOTAL MEM' in trace(snapshot)


@pytest.mark.parametrize('interval', ['100sp', Time(100, 'sp')])
def test_an_interval_in_samples_with_batches_of_32_gives_its_snapshot(interval: Any) -> None:
    train(MemorySnapshot(interval=interval), batches=8, train_dataloader=loader(8, batch_size=32))
    assert [entry.batch for entry in entries(RUN, 'memory_snapshot')] == [5]


def test_so_does_a_run_resumed_at_batch_500_under_the_same_name() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        train(MemorySnapshot(), batches=250, max_duration='500ba', save_folder='checkpoints', save_interval='500ba')
        train(
            MemorySnapshot(interval='100sp'),
            batches=250,
            max_duration='520ba',
            load_path='checkpoints/latest-rank0.pt',
        )
    assert [entry.batch for entry in entries(RUN, 'memory_snapshot')] == [4, 514]


def test_windows_repeat_by_schedule() -> None:
    train(MemorySnapshot(schedule={'active': '1ba', 'every': '4ba'}), batches=12)
    assert [entry.batch for entry in entries(RUN, 'memory_snapshot')] == [1, 5, 9]


def test_it_goes_where_composers_logger_takes_it_under_a_name_not_used_before(
    s3: Any, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('S3_ENDPOINT_URL', s3_endpoint)
    for _ in range(2):
        train(
            MemorySnapshot(remote_file_name='/{run_name}/shelf', folder='local'),
            loggers=[RemoteUploaderDownloader('s3://runs')],
            batches=6,
        )
        assert {entry.status for entry in entries(Path('local'))} == {'uploaded'}
        shutil.rmtree('local')  # as on a fresh node
    assert [name for name in sorted(s3.find('runs')) if name.endswith('.pickle')] == [
        'runs/test-run/shelf/rank0.4.memory_snapshot.2.pickle',
        'runs/test-run/shelf/rank0.4.memory_snapshot.pickle',
    ]


def test_without_anyone_who_takes_files_they_stay_saved() -> None:
    train(MemorySnapshot())
    assert [(entry.status, entry.remote) for entry in entries(RUN, 'memory_snapshot')] == [('saved', None)]


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        ({'skip_batches': -1}, ['skip_batches must be finite and not negative, not -1']),
        ({'interval': '-3ba'}, ["interval must be finite and not negative, not '-3ba'"]),
        ({'interval': 0}, ['interval must be longer than 0, not 0']),
        ({'interval': '3bas'}, ["interval='3bas'", "'ba'"]),
        ({'max_entries': 0}, ['max_entries must be', 'not 0']),
        ({'stacks': 'cpp'}, ["stacks='cpp'", 'python']),
        ({'context': 'none'}, ["context='none'", 'alloc']),
        ({'skip_batches': 5, 'schedule': {'active': '1ba'}}, ['schedule', 'skip_batches=5']),
    ],
)
def test_a_mistake_is_refused_at_construction(arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        MemorySnapshot(**arguments)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_stamp_of_a_file_is_the_end_of_its_window() -> None:
    callback = MemorySnapshot(filename='e{epoch}-b{batch}-s{sample}')
    train(callback)
    assert (RUN / 'e0-b4-s32.pickle').exists()


# -- placed by batch, phase, module and tensor --------------------------------------------------------------------


def test_what_is_allocated_is_placed_in_its_batch_phase_and_module() -> None:
    train(MemorySnapshot(), batches=5)
    snapshot = load_snapshot(RUN / 'rank0.4.memory_snapshot.pickle')
    (answer,) = report_on(snapshot).devices
    assert answer.peak.batch in (1, 2, 3)
    assert {'forward', 'backward', 'optimizer', 'dataloader'} <= set(snapshot.phases.names)
    assert set(snapshot.phases.batch.tolist()) <= {1, 2, 3, 4}
    assert {'net.0', 'net.2'} <= set(snapshot.modules)
    assert {'net.0.weight', 'net.0.bias', 'batch.0'} <= set(snapshot.tensors.names)
    history = snapshot.devices[0]
    outputs = (history.module == snapshot.modules.index('net.0')) & (history.size == 8 * 32 * 4)
    assert outputs.sum() >= 3, 'each batch of 8 gives 32 activations of 4 bytes each'


def test_a_summary_of_a_few_kilobytes_stands_beside_each_snapshot() -> None:
    train(MemorySnapshot(), batches=5)
    text = (RUN / 'rank0.4.memory_snapshot.summary.json').read_text()
    assert len(text) <= 4096
    (answer,) = report_on(load_snapshot(RUN / 'rank0.4.memory_snapshot.pickle')).devices
    assert json.loads(text)['devices'][0]['peak']['bytes'] == answer.peak.bytes


def test_module_marks_follow_nested_forwards_and_leave_no_hook() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.ReLU()))
    annotations = Annotations()
    annotations.follow_modules(model)
    model(torch.ones(1, 4))
    annotations.leave_modules()
    model(torch.ones(1, 4))
    assert [name for _, name in annotations.modules] == ['', '0', '', '1', '1.0', '1', '', '']
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(2 * self.a(x)) + x


def modules_marked(annotations: Annotations) -> list[str]:
    return [name for name, _ in itertools.groupby(name for _, name in annotations.modules)]


def test_module_marks_follow_the_backward_pass_and_leave_its_gradients_as_they_are() -> None:
    model = torch.nn.Sequential(Residual(), torch.nn.Linear(4, 4))
    model(torch.ones(1, 4)).sum().backward()
    alone = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    annotations = Annotations()
    annotations.follow_modules(model)
    loss, later = (model(torch.ones(1, 4)).sum() for _ in range(2))
    annotations.mark('backward', 0)
    before = len(modules_marked(annotations))
    loss.backward()
    assert modules_marked(annotations)[before:] == ['1', '0', '0.b', '0', '0.a']
    assert all(torch.equal(one, parameter.grad) for one, parameter in zip(alone, model.parameters()))
    annotations.mark('optimizer', 0)
    assert modules_marked(annotations)[-1] == ''
    annotations.leave_modules()
    marks = len(annotations.modules)
    later.backward()
    assert len(annotations.modules) == marks


class Views(torch.nn.Module):
    """Hands a view of a tensor that was changed in place to a module, then uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.look = torch.nn.Linear(16, 16), torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        base = self.inner(x).clone()
        view = base[:, :8]
        base.mul_(1.3)
        self.look(view)
        return base.sin().sum() + base.exp().sum() + view.cos().sum()


def test_module_marks_do_not_look_at_what_would_change_the_order_of_a_gradients_sums() -> None:
    model, x = Views(), torch.randn(16, 16)
    model(x).backward()
    alone = model.inner.weight.grad
    model.zero_grad()
    annotations = Annotations()
    annotations.follow_modules(model)
    model(x).backward()
    assert alone is not None and model.inner.weight.grad is not None
    assert torch.equal(alone, model.inner.weight.grad)


class Peculiar(dict):
    def items(self) -> Any:
        raise NotImplementedError('not in training')


class ViewWithoutGrad(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.look = torch.nn.Linear(4, 4), torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> Any:
        made = self.inner(x).clone()
        with torch.no_grad():
            view = made[:1]
        made.mul_(2)
        self.look(view)
        return Peculiar(out=made)


def test_a_closed_callback_does_not_keep_its_trainer_alive() -> None:
    callback = MemorySnapshot(on_oom=True)
    trainer = train(callback, batches=2)
    gone = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert gone() is None


def test_module_marks_raise_nothing_into_a_forward_and_keep_no_recording_alive() -> None:
    model = ViewWithoutGrad()
    annotations = Annotations()
    annotations.follow_modules(model)
    out = model(torch.ones(3, 4))['out']
    annotations.leave_modules()
    gone = weakref.ref(annotations)
    del annotations
    gc.collect()
    assert gone() is None
    out.sum().backward()


def test_after_a_checkpoint_has_run_its_forward_again_the_backward_is_where_it_was() -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    class Checkpointed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> Any:
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Checkpointed())
    annotations = Annotations()
    annotations.follow_modules(model)
    loss = model(torch.ones(1, 4)).sum()
    annotations.mark('backward', 0)
    before = len(modules_marked(annotations))
    loss.backward()
    marked = modules_marked(annotations)[before:]
    assert marked[:1] == ['1.inner.1'] and marked[-1] == '0', marked
    assert '1.inner.0' in marked


def test_a_compiled_model_is_not_hooked() -> None:
    model = torch.compile(torch.nn.Linear(2, 2))
    annotations = Annotations()
    annotations.follow_modules(torch.nn.Sequential(model))  # type: ignore[arg-type]
    assert annotations._hooks == []


# -- what stood before the window ---------------------------------------------------------------------------------


class Tied(Regression):
    """Two layers share a weight, a buffer is a view of another, and the optimizer's state outweighs the activations."""

    def __init__(self) -> None:
        super().__init__()
        first, second = torch.nn.Linear(FEATURES, FEATURES), torch.nn.Linear(FEATURES, FEATURES)
        second.weight = first.weight
        self.net = torch.nn.Sequential(first, second, torch.nn.Linear(FEATURES, 512), torch.nn.Linear(512, 1))
        self.register_buffer('table', torch.zeros(1000))
        self.register_buffer('tail', self.table[500:])


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


def test_in_an_evaluation_the_peak_lies_in_its_forward_and_batches_are_its_own() -> None:
    model = Tied()
    snapshot_of_eval = MemorySnapshot(schedule={'skip': '1ba', 'active': '2ba'}, stages=['eval'])
    train(snapshot_of_eval, model=model, eval_dataloader=loader(4), batches=3)
    snapshot = load_snapshot(RUN / 'rank0.3.memory_snapshot.eval3.pickle')
    assert set(snapshot.phases.names) == {'eval', 'eval forward'}
    assert set(snapshot.phases.batch.tolist()) == {1, 2}
    (device,) = report_on(snapshot).devices
    assert device.peak.phase == 'eval forward'
    sizes = {share.category: share.bytes for share in device.peak.categories}
    assert sizes['parameter'] == sum(4 * parameter.numel() for parameter in model.parameters())
    assert sizes['input'] > 0


def test_so_it_does_in_a_prediction() -> None:
    trainer = make_trainer(MemorySnapshot(schedule={'active': '2ba'}, stages=['predict']))
    trainer.predict(loader(3), return_outputs=False)
    trainer.close()
    (path,) = RUN.glob('*.predict2.pickle')
    snapshot = load_snapshot(path)
    assert set(snapshot.phases.names) == {'predict', 'predict forward'}
    assert report_on(snapshot).devices[0].peak.phase == 'predict forward'


@pytest.mark.parametrize('reentrant', [True, False])
def test_what_activation_checkpointing_computes_again_has_a_name_of_its_own(reentrant: bool) -> None:
    class Checkpointed(Regression):
        def forward(self, batch: Any) -> torch.Tensor:
            return checkpoint(self.net, batch[0].requires_grad_(), use_reentrant=reentrant)

    train(MemorySnapshot(), model=Checkpointed(), batches=5)
    snapshot = load_snapshot(RUN / 'rank0.4.memory_snapshot.pickle')
    (history,) = snapshot.devices
    blocks = lifetimes(history)
    found = categories(snapshot, history, blocks).category == CATEGORIES.index('recomputed_activation')
    after_relu = 8 * 32 * 4
    assert blocks.size[found].tolist().count(after_relu) == 3, 'one in each batch'
    assert blocks.size[found].sum() < 3 * (after_relu + 100), 'what is freed while it is computed again is temporary'


# -- standing by --------------------------------------------------------------------------------------------------


def test_standing_by_gives_way_to_the_windows_of_others_and_leaves_nothing_when_all_goes_well() -> None:
    train(MemorySnapshot(on_oom=True, on_exception=True), TorchProfiler(schedule={'skip': '6ba', 'active': '2ba'}))
    assert {entry.path for entry in entries(RUN, 'memory_snapshot')} == {'rank0.4.memory_snapshot.pickle'}
    assert [entry.status for entry in entries(RUN, 'torch_profiler')] == ['saved']


def test_an_error_that_was_caught_is_no_reason_to_lose_the_snapshot() -> None:
    class Fails(Callback):
        def batch_end(self, state: Any, logger: Any) -> None:
            if state.timestamp.batch == 6:
                raise RuntimeError('something else')

    trainer = make_trainer(MemorySnapshot(on_exception=True), Fails())
    with pytest.raises(RuntimeError, match='something else'):
        trainer.fit()
    trainer.close()
    names = {entry.path for entry in entries(RUN, 'memory_snapshot')}
    assert 'rank0.6.memory_snapshot.exception.pickle' in names


@pytest.mark.parametrize(
    ('error', 'expected'),
    [
        (torch.OutOfMemoryError('CUDA out of memory'), True),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 400 bytes."
            ),
            True,
        ),
        (MemoryError(), True),
        (RuntimeError('shapes differ'), False),
        (None, False),
    ],
)
def test_errors_of_memory_are_told_from_others(error: Any, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_the_bytes_that_the_host_could_not_give_are_read_from_the_message() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 58)
    assert is_out_of_memory(caught.value)
    assert parse_out_of_memory(caught.value).requested == 1 << 60


def test_one_observer_serves_all_who_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    attached: list[Any] = []
    monkeypatch.setattr(cuda_allocator, 'attach_out_of_memory_observer', attached.append)
    monkeypatch.setattr(out_of_memory, '_attached', False)
    heard: list[Any] = []
    for number in range(2):
        observer = functools.partial(lambda number, *facts: heard.append((number, *facts)), number)
        out_of_memory.add_observer(observer)
        attached[0](0, 10, 20, 5)
        out_of_memory.remove_observer(observer)
    attached[0](0, 10, 20, 5)
    assert (len(attached), heard) == (1, [(0, 0, 10, 20, 5), (1, 0, 10, 20, 5)])


@pytest.mark.parametrize('first', [TorchProfiler, MemorySnapshot])
def test_standing_by_beside_one_with_the_same_windows_costs_neither_its_files(first: type) -> None:
    same = {'skip': '2ba', 'warmup': '1ba', 'active': '2ba'}
    train(first(schedule=same), MemorySnapshot(schedule=same, on_exception=True))
    assert {entry.status for entry in entries(RUN, first.kind)} == {'saved'}
    assert 'saved' in {entry.status for entry in entries(RUN, 'memory_snapshot')}


def test_two_that_stand_by_are_refused() -> None:
    with pytest.raises(ValueError, match=r'on_oom=True.*another MemorySnapshot'):
        make_trainer(
            MemorySnapshot(on_exception=True), MemorySnapshot(on_oom=True, schedule={'skip': '5ba', 'active': '1ba'})
        )


def test_standing_by_is_for_fit_alone_and_over_with_it() -> None:
    trainer = make_trainer(MemorySnapshot(on_exception=True), eval_dataloader=loader(3))
    trainer.fit()
    trainer.eval()
    assert not torch.autograd._profiler_enabled()
    trainer.close()
    assert not torch.autograd._profiler_enabled()


@pytest.mark.parametrize('warmup', [0, 1])
def test_standing_by_keeps_out_of_what_composers_profiler_records(warmup: int) -> None:
    profiler = Profiler(
        trace_handlers=[JSONTraceHandler(folder='composers')],
        schedule=cyclic_schedule(wait=2, warmup=warmup, active=2, repeat=1),
        torch_prof_folder='composers_torch',
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        train(MemorySnapshot(on_exception=True, schedule={'skip': '8ba', 'active': '1ba'}), profiler=profiler)
    assert not any('is disabled' in str(warning.message) for warning in caught)
    assert list(Path('composers_torch').rglob('*.json*'))
    assert [entry.status for entry in entries(RUN, 'memory_snapshot')] == ['saved']


class Breaks(Callback):
    """Fails once, in the middle of batch 4."""

    def __init__(self) -> None:
        self.failed = False

    def after_forward(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == 4 and not self.failed:
            self.failed = True
            activation = torch.empty(10)  # lives as long as this frame, so as long as the error
            self.held = weakref.ref(activation)
            raise RuntimeError('once')


def test_what_the_failed_batch_held_is_let_go() -> None:
    breaks, callback = Breaks(), MemorySnapshot(schedule={'skip': '99ba', 'active': '1ba'}, on_exception=True)
    trainer = make_trainer(callback, breaks)
    with contextlib.suppress(RuntimeError):
        trainer.fit()
    trainer.close()
    del trainer
    gc.collect()
    assert breaks.held() is None


class RunsOut(Callback):
    """The host has not enough memory in batch 5, for what nobody could give."""

    def before_loss(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == 5:
            torch.empty(1 << 58)


def test_an_out_of_memory_error_that_the_user_caught_is_saved_before_the_user_goes_on() -> None:
    trainer = make_trainer(MemorySnapshot(schedule={'skip': '99ba', 'active': '1ba'}, on_oom=True), RunsOut())
    with contextlib.suppress(RuntimeError):
        trainer.fit()
    assert not torch.autograd._profiler_enabled(), 'nothing that follows is recorded'
    trainer.close()
    report = report_on(load_snapshot(RUN / 'rank0.5.memory_snapshot.oom.pickle'))
    assert report.oom is not None and report.oom.requested == 1 << 60
    assert "can't allocate memory" in report.error
    assert 'fit' not in vars(trainer), 'the Trainer is as it was'


def test_so_is_one_that_the_user_turned_into_another_error() -> None:
    class Translates(RunsOut):
        def before_loss(self, state: Any, logger: Any) -> None:
            try:
                super().before_loss(state, logger)
            except RuntimeError as error:
                raise ValueError('the batch is too large') from error

    trainer = make_trainer(MemorySnapshot(on_oom=True), Translates())
    with contextlib.suppress(ValueError):
        trainer.fit()
    trainer.close()
    report = report_on(load_snapshot(RUN / 'rank0.5.memory_snapshot.oom.pickle'))
    assert report.error == 'ValueError: the batch is too large' and report.oom is not None


def test_each_fit_that_breaks_off_leaves_its_snapshot_and_another_error_leaves_none() -> None:
    runs_out, breaks = RunsOut(), Breaks()
    trainer = make_trainer(MemorySnapshot(schedule={'skip': '99ba', 'active': '1ba'}, on_oom=True), runs_out, breaks)
    for expected in ('once', "can't allocate memory", "can't allocate memory"):
        with pytest.raises(RuntimeError, match=expected):
            trainer.fit()
    trainer.close()
    names = [entry.path for entry in entries(RUN, 'memory_snapshot')]
    assert names == ['rank0.5.memory_snapshot.oom.pickle', 'rank0.5.memory_snapshot.oom.2.pickle']


def test_a_fit_after_a_failed_one_saves_the_first_ones_snapshot_and_records_its_own() -> None:
    trainer = make_trainer(MemorySnapshot(schedule={'skip': '3ba', 'active': '1ba'}, on_exception=True), Breaks())
    with pytest.raises(RuntimeError, match='once'):
        trainer.fit()
    trainer.fit()
    trainer.close()
    names = [entry.path for entry in entries(RUN, 'memory_snapshot')]
    assert any('.exception.' in name for name in names) and len(names) >= 2


def test_another_trainer_after_a_failed_one_records_as_if_nothing_had_been() -> None:
    broken = make_trainer(
        MemorySnapshot(schedule={'skip': '99ba', 'active': '1ba'}, on_exception=True), Breaks(), run_name='broken'
    )
    with pytest.raises(RuntimeError, match='once'):
        broken.fit()
    train(MemorySnapshot())
    assert [entry.status for entry in entries(RUN, 'memory_snapshot')] == ['saved']
    assert any('.exception.' in entry.path for entry in entries(Path('broken'), 'memory_snapshot'))
    broken.close()


def test_a_forward_that_composer_has_compiled_is_left_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model.forward = torch.compile(model.forward)  # type: ignore[method-assign]
    annotations = Annotations()
    annotations.follow_modules(model)
    assert annotations._hooks == []


def test_what_there_was_at_the_failure_is_told_apart_from_the_peak() -> None:
    class Runs(Callback):
        def before_loss(self, state: Any, logger: Any) -> None:
            if state.timestamp.batch == 5:
                torch.empty(1 << 20)
                self.kept = torch.empty(1 << 18)
                raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 GiB.')

    trainer = make_trainer(MemorySnapshot(on_oom=True), Runs())
    try:
        trainer.fit()
    except torch.OutOfMemoryError:
        trainer.close()
    answer = report_on(load_snapshot(RUN / 'rank0.5.memory_snapshot.oom.pickle'))
    (device,) = answer.devices
    assert device.at_failure is not None and answer.oom is not None
    assert device.peak.bytes >= 4 << 20 > device.at_failure.bytes >= 1 << 20
    assert (answer.oom.batch, answer.oom.phase) == (5, 'forward')


IMPORTS = """
from composer_memprof import MemorySnapshot
from tests.conftest import make_trainer

trainer = make_trainer(MemorySnapshot(skip_batches=0, interval='1ba', folder='snapshots'), max_duration='1ba')

def imports(*_):
    import pydoc, sqlite3, sympy.stats, wave, xml.dom.minidom

trainer.state.model.register_forward_pre_hook(imports)
trainer.fit()
trainer.close()
"""


def test_a_module_that_is_imported_in_a_window_loses_no_snapshot() -> None:
    # The code of an imported module is freed, and torch's profiler goes on pointing at its names.
    run_python(f'import os; os.chdir({os.getcwd()!r}){IMPORTS}')
    assert 'memory_snapshot' in {entry.kind for entry in entries(Path('snapshots')) if entry.status == 'saved'}
