"""The recorder of FSDPMemTracker: memory by category and by module, to the byte."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, Optional

import pytest
import torch
from torch import nn

from composer_memprof import FSDPMemTracker
from composer_memprof.recorders.modules.categories import CATEGORIES
from composer_memprof.recorders.modules.recorder import ModuleMemoryRecorder
from composer_memprof.recorders.modules.result import DeviceMemory, ModuleMemory
from composer_memprof.recorders.saved_tensors.recorder import SavedTensorsRecorder
from composer_memprof.report.text.tables.module_memory import Layout, module_memory_text
from tests.conftest import FEATURES, Regression, train
from tests.support.callbacks.module_memory import PARAMETERS, SOON, Blocks, LiveStorages, recorded
from tests.support.processes.python_code import run_python

#: Bytes of AdamW's state: two copies, and a step counter for each of four parameters.
ADAMW = 2 * PARAMETERS + 4 * 4


def step(recorder: ModuleMemoryRecorder, optimizer: torch.optim.Optimizer, *inputs: torch.Tensor) -> None:
    """A batch with one microbatch for each of ``inputs``, without a Trainer."""
    recorder.begin_batch(inputs)
    optimizer.zero_grad()
    for x in inputs:
        recorder.model(x).pow(2).mean().backward()
        recorder.end_backward()
    recorder.begin_optimizer()
    optimizer.step()
    recorder.end_optimizer()


def record(model: nn.Module, *inputs: torch.Tensor, **more: Any) -> ModuleMemory:
    """The memory of the second of two batches."""
    optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
    recorder = ModuleMemoryRecorder(model, [optimizer], **more)
    step(recorder, optimizer, *inputs)
    with recorder:
        step(recorder, optimizer, *inputs)
    assert recorder.result is not None
    return recorder.result


def every_memory(memory: ModuleMemory) -> Iterator[DeviceMemory]:
    yield memory.peak
    yield memory.end
    yield from memory.phases.values()
    for module in memory.modules:
        yield from (state.memory for state in module.states)


@pytest.mark.parametrize('microbatch', [8, 2])
def test_parameters_gradients_and_optimizer_state_are_exact_under_composers_closure(microbatch: int) -> None:
    train(FSDPMemTracker(schedule=SOON), device_train_microbatch_size=microbatch)
    sizes = recorded()['phases']['optimizer']['cpu']
    assert (sizes['Parameter'], sizes['Gradient'], sizes['OptState']) == (PARAMETERS, PARAMETERS, ADAMW)
    assert recorded()['peak']['cpu']['OptState'] == ADAMW


def test_state_that_the_optimizer_makes_in_its_first_step_is_optimizer_state() -> None:
    train(FSDPMemTracker(schedule={'active': '1ba'}))
    phases = recorded()['phases']
    assert phases['forward']['cpu']['OptState'] == phases['backward']['cpu']['OptState'] == 0
    assert phases['optimizer']['cpu']['OptState'] == ADAMW
    assert phases['optimizer']['cpu']['Gradient'] == PARAMETERS


def test_an_optimizer_without_state_has_none_and_its_temporaries_are_temp() -> None:
    model = nn.Linear(64, 64)
    recorder = ModuleMemoryRecorder(model, [optimizer := torch.optim.AdamW(model.parameters())])
    with recorder:
        step(recorder, optimizer, torch.ones(1, 64))
    assert recorder.result is not None
    sizes = recorder.result.phases['optimizer']['cpu']
    assert sizes['Temp'] >= 64 * 64 * 4, 'the square root of the second moment'
    assert sizes['OptState'] == 2 * (64 * 64 + 64) * 4 + 2 * 4


def test_saved_tensor_hooks_keep_no_storage_alive() -> None:
    model, x = Regression().net, torch.ones(8, FEATURES)
    alone = record(model, x)
    with SavedTensorsRecorder(model):
        beside = record(model, x)
    assert beside.phases['optimizer'] == alone.phases['optimizer']
    assert beside.end == alone.end


def test_activations_match_a_calculation_by_hand() -> None:
    rows, width, hidden = 16, 8, 24
    model = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 3))
    memory = record(model, torch.ones(rows, width))
    first, relu, last = (use for use in memory.modules if use.depth == 2)
    assert first.own_activation_bytes == rows * hidden * 4
    assert relu.own_activation_bytes == rows * hidden * 4
    assert last.own_activation_bytes == 0, 'the loss was made since, and holds more'
    at_the_end = next(state for state in memory.modules[0].states if state.state == 'Post-Forward')
    # Linear's output is freed because ReLU keeps its own output; the Sequential holds only the last one.
    assert at_the_end.memory['cpu']['Activation'] == rows * hidden * 4 + rows * 3 * 4


def test_modules_and_what_is_made_outside_of_them_sum_to_the_activations() -> None:
    model, x = nn.Linear(4, 4), torch.ones(4, 4)
    recorder = ModuleMemoryRecorder(model)
    with recorder:
        copies = model(x).expand(100, 4, 4).clone()
    del copies
    memory = recorder.result
    assert memory is not None
    assert (memory.modules[0].activation_bytes, memory.outside_activation_bytes) == (4 * 4 * 4, 100 * 4 * 4 * 4)
    assert memory.phases['forward']['cpu']['Activation'] == 4 * 4 * 4 * 101
    lines = module_memory_text(memory, 'Linear', Layout(2, 'B', False)).splitlines()
    (outside,) = (line for line in lines if line.startswith('(outside of modules)'))
    assert outside.endswith('6400 B')


def test_four_microbatches_have_the_same_parameters_gradients_and_state_and_fewer_activations() -> None:
    x = torch.randn(64, 32)
    whole, split = record(Blocks(), x), record(Blocks(), *x.split(16))
    for category in ('Parameter', 'Gradient', 'OptState'):
        assert whole.phases['optimizer']['cpu'][category] == split.phases['optimizer']['cpu'][category] > 0
    most = [memory.modules[0].activation_bytes for memory in (whole, split)]
    assert most[1] == pytest.approx(most[0] / 4, rel=0.01)


@pytest.mark.parametrize('reentrant', [None, False, True])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('microbatches', [1, 4])
def test_categories_sum_to_the_total_whose_peak_matches_an_independent_count(
    reentrant: Optional[bool], dtype: torch.dtype, microbatches: int
) -> None:
    model = Blocks(reentrant=reentrant)
    optimizer = torch.optim.AdamW(model.parameters())
    recorder = ModuleMemoryRecorder(model, [optimizer])
    inputs = torch.randn(64, 32).chunk(microbatches)
    gc.collect()  # nothing of other tests may go between the two peaks
    with torch.autocast('cpu', dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        step(recorder, optimizer, *inputs)
        state = [tensor for states in optimizer.state.values() for tensor in states.values()]
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        count = LiveStorages(*model.parameters(), *gradients, *state, *inputs)
        del gradients
        with recorder, count:
            step(recorder, optimizer, *inputs)
    memory = recorder.result
    assert memory is not None
    of_other_tests = sum(held.peak_bytes for held in memory.before)
    assert memory.peak['cpu']['Total'] == count.peak + of_other_tests
    for sizes in every_memory(memory):
        assert set(sizes['cpu']) == {*CATEGORIES, 'Total'}
        assert sum(sizes['cpu'][name] for name in CATEGORIES) == sizes['cpu']['Total']
        assert min(sizes['cpu'].values()) >= 0


@pytest.mark.parametrize('reentrant', [False, True])
def test_checkpointing_lowers_activations_and_recomputed_ones_are_activations(reentrant: bool) -> None:
    x = torch.randn(256, 32)
    plain, saving = record(Blocks(), x), record(Blocks(reentrant=reentrant), x)
    inside = 256 * 4 * 32 * 4
    in_forward = [memory.phases['forward']['cpu']['Activation'] for memory in (plain, saving)]
    assert in_forward[0] - in_forward[1] >= inside
    recomputed = next(use for use in saving.modules if use.name == 'blocks.1.0')
    states = {state.state: state.memory['cpu']['Activation'] for state in recomputed.states}
    assert states['Post-Forward-AC'] - states['Pre-Forward-AC'] == inside


def test_frozen_parameters_have_neither_gradient_nor_state() -> None:
    model = Blocks()
    model.blocks[0].requires_grad_(False)
    trained = sum(4 * p.numel() for p in model.parameters() if p.requires_grad)
    sizes = record(model, torch.randn(8, 32)).phases['optimizer']['cpu']
    assert sizes['Gradient'] == trained
    assert sizes['OptState'] == 2 * trained + 4 * sum(p.requires_grad for p in model.parameters())
    assert sizes['Parameter'] == sum(4 * p.numel() for p in model.parameters())


def test_tied_weights_count_once() -> None:
    model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Tanh(), nn.Linear(16, 16, bias=False))
    model[2].weight = model[0].weight
    sizes = record(model, torch.randn(4, 16)).phases['optimizer']['cpu']
    assert (sizes['Parameter'], sizes['Gradient']) == (1024, 1024)
    assert sizes['OptState'] == 2 * 1024 + 4


def test_buffers_and_inputs_have_categories_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    sizes = record(model, torch.randn(4, 8)).peak['cpu']
    assert sizes['Buffer'] == 8 * 4 + 8 * 4 + 8
    assert sizes['Inputs'] == 4 * 8 * 4


def test_autocasts_copies_of_weights_are_activations() -> None:
    with torch.autocast('cpu', dtype=torch.bfloat16):
        sizes = record(Blocks(), torch.randn(8, 32)).phases['optimizer']['cpu']
    parameters = sum(4 * p.numel() for p in Blocks().parameters())
    assert sizes['Parameter'] == sizes['Gradient'] == parameters


def test_a_module_called_twice_has_both_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.relu(self.layer(x)))

    memory = record(Twice(), torch.randn(4, 8))
    layer = next(use for use in memory.modules if use.name == 'layer')
    assert layer.calls == 2
    assert sum(state.state == 'Peak-Forward' for state in layer.states) == 2


def test_a_sharded_models_memory_is_recorded_without_a_gpu() -> None:
    """One rank's share, of 64, of a model on fake tensors."""
    code = """
import torch
import torch.distributed._tools.fake_collectives  # lets collectives run on fake tensors
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from composer_memprof.recorders.modules.recorder import ModuleMemoryRecorder

torch.distributed.init_process_group('fake', store=FakeStore(), rank=0, world_size=64)
mesh = torch.distributed.device_mesh.init_device_mesh('cpu', (64,))
with FakeTensorMode():
    width = 8192
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(4)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    recorder = ModuleMemoryRecorder(model, [optimizer])
    x = torch.randn(16, width)
    with recorder:
        recorder.begin_batch(x)
        model(x).sum().backward()
        recorder.begin_optimizer()
        optimizer.step()
        recorder.end_optimizer()
sizes = recorder.result.phases['optimizer']['cpu']
share = 4 * 4 * width * width // 64
assert sizes['ShardedParam'] == sizes['ShardedGrad'] == share, sizes
assert sizes['OptState'] == 2 * share + 4 * 4, sizes
assert recorder.result.phases['forward']['cpu']['UnshardedParam'] >= 4 * width * width, recorder.result.phases
"""
    run_python(code)
