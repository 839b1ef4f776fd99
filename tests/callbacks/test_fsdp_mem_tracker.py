"""FSDPMemTracker and its recorder: memory by category and by module, to the byte."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from composer.loggers import InMemoryLogger
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, is_in_torch_dispatch_mode
from torch.utils.checkpoint import checkpoint

from composer_memprof import FSDPMemTracker
from composer_memprof.analysis.module_memory import read_memory_summary, summary_of_memory
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.modules.blocks import block_depth
from composer_memprof.recorders.modules.categories import CATEGORIES
from composer_memprof.recorders.modules.recorder import ModuleMemoryRecorder
from composer_memprof.recorders.modules.result import DeviceMemory, ModuleMemory
from composer_memprof.recorders.saved_tensors.recorder import SavedTensorsRecorder
from composer_memprof.report.text.tables.module_memory import Layout, module_memory_text
from tests.conftest import FEATURES, Regression, entries, make_trainer, train

SOON = {'skip': '2ba', 'active': '1ba'}
#: Bytes of Regression's parameters in fp32: two layers with biases.
PARAMETERS = 4 * (FEATURES * 32 + 32 + 32 + 1)
#: Bytes of AdamW's state: two copies, and a step counter for each of four parameters.
ADAMW = 2 * PARAMETERS + 4 * 4


def recorded(path: str = 'test-run/memprof') -> dict[str, Any]:
    (file,) = (file for file in Path(path).glob('*.json') if not file.name.endswith('.summary.json'))
    return json.loads(file.read_text())


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


class Blocks(nn.Module):
    """Two blocks of three layers, with or without checkpoints."""

    def __init__(self, width: int = 32, reentrant: Optional[bool] = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(2)
        )
        self.head = nn.Linear(width, 1)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()  # reentrant checkpointing needs an input with a gradient
        for block in self.blocks:
            x = x + (block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant))
        return self.head(x)


# -- exactness ------------------------------------------------------------------------------------------------------


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


class LiveStorages(TorchDispatchMode):
    """An independent count: the sum of all storages seen, computed again after each operation."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()
        self.met: dict[int, weakref.ref] = {}
        self.peak = 0
        self._see(known)

    def _see(self, value: Any) -> None:
        for leaf in torch.utils._pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self.met[id(storage)] = weakref.ref(storage)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._see((args, kwargs, result))
        live = {id(storage): storage for ref in self.met.values() if (storage := ref()) is not None}
        self.peak = max(self.peak, sum(storage.nbytes() for storage in live.values()))
        return result


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


def run_python(code: str) -> None:
    import subprocess
    import sys

    from tests.conftest import child_environment

    run = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, timeout=300, env=child_environment()
    )
    assert run.returncode == 0, run.stderr


# -- training is not changed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize('microbatch', [8, 2])
def test_losses_and_weights_are_bit_identical_with_every_batch_recorded(microbatch: int) -> None:
    results = []
    for callbacks in ([], [FSDPMemTracker(schedule={'active': '99ba'})]):
        trainer = make_trainer(*callbacks, device_train_microbatch_size=microbatch)
        trainer.fit()
        results.append([p.detach().clone() for p in trainer.state.model.parameters()])
        trainer.close()
    assert all(torch.equal(bare, tracked) for bare, tracked in zip(*results))


@pytest.mark.parametrize('method', ['operated', 'entered', 'left'])
def test_an_error_of_the_recorder_does_not_reach_the_training(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = [p.detach().clone() for p in train().state.model.parameters()]

    def fail(*args: Any) -> None:
        raise RuntimeError('a bug of ours')

    monkeypatch.setattr(ModuleMemoryRecorder, method, fail)
    with pytest.warns(MemprofWarning, match='a bug of ours') as caught:
        trainer = train(FSDPMemTracker(schedule=SOON))
    assert sum('is disabled' in str(warning.message) for warning in caught) == 1
    assert all(torch.equal(a, b) for a, b in zip(bare, trainer.state.model.parameters()))
    assert nothing_is_left()


def nothing_is_left() -> bool:
    modules = torch.nn.modules.module
    return (
        not _get_current_dispatch_mode_stack()
        and torch.UntypedStorage.resize_ is torch._C.StorageBase.resize_
        and not modules._global_forward_hooks
        and not modules._global_forward_pre_hooks
    )


def test_no_hooks_are_left_in_torch_or_the_model_after_a_window() -> None:
    model = Regression()
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    hooks = [parameter._backward_hooks for parameter in model.parameters()]
    recorder = ModuleMemoryRecorder(model)
    with recorder:
        model((torch.ones(2, FEATURES), None)).sum().backward()
        assert not nothing_is_left()
    assert nothing_is_left()
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before
    assert [parameter._backward_hooks for parameter in model.parameters()] == hooks


def test_an_exception_of_the_training_passes_through_and_no_hooks_are_left() -> None:
    model = Regression()
    with pytest.raises(ZeroDivisionError), ModuleMemoryRecorder(model):
        model((torch.ones(2, FEATURES), None))
        raise ZeroDivisionError
    assert nothing_is_left()


def test_recorders_and_other_modes_can_start_and_end_in_any_order() -> None:
    model = nn.Linear(4, 4)
    first, second, other = ModuleMemoryRecorder(model), ModuleMemoryRecorder(model), LiveStorages()
    first.start()
    other.__enter__()
    second.start()
    model(torch.ones(2, 4)).sum().backward()
    first.stop()
    second.stop()
    assert _get_current_dispatch_mode_stack() == [other]
    other.__exit__(None, None, None)
    assert nothing_is_left()
    assert first.result is not None and second.result is not None
    assert first.result.end['cpu']['Gradient'] == second.result.end['cpu']['Gradient'] == 80


# -- files ----------------------------------------------------------------------------------------------------------


def test_a_window_writes_its_tables_and_json_and_logs_its_peak() -> None:
    logger = InMemoryLogger()
    train(FSDPMemTracker(schedule=SOON, units='B', depth=3), loggers=[logger])
    kinds = {entry.kind: entry.path for entry in entries(Path('test-run'))}
    assert kinds == {
        'fsdp_mem_tracker': 'fsdp_mem_rank_0_train_3.log',
        'fsdp_mem_tracker.json': 'fsdp_mem_rank_0_train_3.json',
        'fsdp_mem_tracker.summary': 'fsdp_mem_rank_0_train_3.summary.json',
    }
    assert Path('test-run/memprof', kinds['fsdp_mem_tracker.json']).read_text().count('\n') == 1, 'no indentation'
    document = recorded()
    assert (document['rank'], document['epoch'], document['batch'], document['stage']) == (0, 0, 3, 'train')
    log = Path('test-run/memprof/fsdp_mem_rank_0_train_3.log').read_text()
    assert log.startswith('Device: cpu\n\tParameter: 2308 B\n')
    for name in ('Regression', 'Regression.net', 'Regression.net.0', 'Regression.net.2'):
        assert f'Module:  {name}\n' in log
    assert f'\tTotal: {document["peak"]["cpu"]["Total"]} B\n' in log
    assert 'previous outputs  cpu     2         32 B' in log
    assert document['not_seen'] == {} and 'Not seen on a CPU: what an operator holds while it runs' in log
    for category, size in document['peak']['cpu'].items():
        assert logger.data[f'fsdp_mem/peak/{category}'][-1][1] == size
    names = {module['name']: module for module in document['modules']}
    assert names['net.0']['parameter_bytes'] == 4 * (FEATURES * 32 + 32)


def test_the_summary_has_the_peaks_and_the_activations_of_equal_layers_together() -> None:
    train(FSDPMemTracker(schedule=SOON))
    document = recorded()
    path = Path('test-run/memprof/fsdp_mem_rank_0_train_3.summary.json')
    summary = read_memory_summary(path)
    assert path.stat().st_size < 4096
    assert summary.peak == document['peak']
    assert {phase: sizes['cpu']['Total'] for phase, sizes in summary.phases.items()} == {
        phase: sizes['cpu']['Total'] for phase, sizes in document['phases'].items()
    }
    own = {module['name']: module['own_activation_bytes'] for module in document['modules']}
    assert summary.activations == {'net.*': own['net.0'] + own['net.1'] + own['net.2']}
    assert summary.outside_activation_bytes == document['outside_activation_bytes']
    head = json.loads(path.read_text())
    assert (head['rank'], head['batch'], head['stage'], head['version']) == (0, 3, 'train', 1)


def test_the_summary_of_many_layers_with_long_names_stays_small() -> None:
    sizes = {'cpu': {**dict.fromkeys(CATEGORIES, 1 << 40), 'Total': 8 << 40}}
    layers = [(f'{"x" * 300}{letter}{other}', 1) for letter in 'abcdefghij' for other in 'klmnopqrst']
    summary = summary_of_memory(sizes, {'forward': sizes}, [('top', 5), *layers])
    assert len(json.dumps(summary.as_dict())) < 4500
    assert next(iter(summary.activations)) in ('top', 'x' * 200) and summary.layers_left_out >= 0


@pytest.mark.parametrize('tabulate', [False, True])
def test_depth_units_and_tabulate_shape_the_log(tabulate: bool) -> None:
    train(FSDPMemTracker(schedule=SOON, units='KiB', depth=1, tabulate=tabulate))
    log = Path('test-run/memprof/fsdp_mem_rank_0_train_3.log').read_text()
    assert 'Module:  Regression\n' in log and 'Regression.net' not in log
    assert '2.25 KiB' in log, 'the parameters'
    assert ('State & Call' in log) is tabulate


class Nested(nn.Module):
    """A transformer's shape inside of two modules that have nothing else, as LLM Foundry's MPT is."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleDict(
            {
                'transformer': nn.ModuleDict(
                    {'norm': nn.LayerNorm(8), 'blocks': nn.ModuleList(map(self.block, range(6)))}
                )
            }
        )

    @staticmethod
    def block(number: int) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        transformer = self.model['transformer']
        for block in transformer['blocks']:
            x = x + block(x)
        return transformer['norm'](x)


class NestedRegression(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 8), Nested(), nn.Linear(8, 1))


def test_by_default_the_log_goes_down_to_the_blocks_with_the_states_of_the_first_and_the_last() -> None:
    train(FSDPMemTracker(schedule=SOON), model=NestedRegression())
    log = Path('test-run/memprof/fsdp_mem_rank_0_train_3.log').read_text()
    table, _, states = log.partition('Module:  NestedRegression\n')
    name = 'NestedRegression.net.1.model.transformer.blocks'
    assert all(f'{name}.{number} ' in table for number in range(6)) and f'{name}.0.0' not in table
    assert [number for number in range(6) if f'Module:  {name}.{number}\n' in states] == [0, 5]
    assert 'in the JSON: 4 modules between the first and the last block' in table
    depth = {module['name']: (module['depth'], bool(module['states'])) for module in recorded()['modules']}
    assert depth['net.1.model.transformer.blocks.3'] == (7, True)
    assert depth['net.1.model.transformer.blocks.3.0'] == (8, False)


@pytest.mark.parametrize(
    ('model', 'depth'),
    [
        (nn.Linear(2, 2), 2),
        (Nested(), 5),
        (Blocks(), 3),
        (nn.Sequential(nn.Linear(2, 2), nn.GELU()), 2),
        (nn.Sequential(nn.ReLU(), nn.ReLU()), 2),
        (nn.ModuleDict({'head': nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), 'body': Nested()}), 6),
    ],
)
def test_the_depth_of_blocks_is_that_of_the_largest_group_of_equal_modules(model: nn.Module, depth: int) -> None:
    assert block_depth(model) == depth
    assert block_depth(nn.DataParallel(model)) == depth, 'a wrapper is no level'


def test_a_root_module_limits_the_modules_but_not_the_totals() -> None:
    train(FSDPMemTracker(schedule=SOON, root_module='net.0'))
    document = recorded()
    assert [module['name'] for module in document['modules']] == ['net.0']
    assert document['phases']['optimizer']['cpu']['Parameter'] == PARAMETERS


# -- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        ({'depth': 0}, ['depth must be a number of levels', 'not 0']),
        ({'units': 'MB'}, ["units='MB'", 'MiB']),
        ({'tabulate': 'no'}, ['tabulate must be true or false', "not 'no'"]),
        ({'root_module': 3}, ['root_module must be the dotted name of a module', 'not 3']),
        ({'filename': '{functon}'}, ['filename', '{functon}']),
    ],
)
def test_a_wrong_parameter_is_refused_at_construction(arguments: Mapping[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        FSDPMemTracker(**arguments)
    assert all(word in str(caught.value) for word in words) and '\n' not in str(caught.value)


def test_an_unknown_root_module_is_refused_with_the_names_of_modules() -> None:
    with pytest.raises(ValueError, match=r"root_module='nett' is not in the model, a Regression; .*net, net\.0"):
        make_trainer(FSDPMemTracker(root_module='nett'))


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match='has no parameters'):
        ModuleMemoryRecorder(nn.ReLU())


def test_fsdp1_is_refused_and_the_message_names_fsdp2(monkeypatch: pytest.MonkeyPatch) -> None:
    import composer.core.state

    monkeypatch.setattr(composer.core.state.State, 'fsdp_config_version', 1)
    with pytest.raises(ValueError, match='FSDP_VERSION=2'):
        make_trainer(FSDPMemTracker())


def test_an_active_tracker_of_torch_is_refused_before_training_and_disables_ours_during_it() -> None:
    from torch.distributed._tools.mem_tracker import MemTracker

    trainer = make_trainer(FSDPMemTracker(schedule=SOON))
    with MemTracker(), pytest.raises(ValueError, match='another tracker is active'):
        trainer.fit()
    trainer.close()
    with MemTracker(), pytest.raises(RuntimeError, match='another tracker is active'):
        ModuleMemoryRecorder(nn.Linear(2, 2)).start()
    assert nothing_is_left()


def test_a_compiled_model_is_not_recorded_and_warned_of_once() -> None:
    with pytest.warns(MemprofWarning, match=r'torch\.compile'):
        trainer = train(FSDPMemTracker(schedule=SOON), compile_config={'backend': 'eager'})
    assert trainer.state.timestamp.batch.value == 12
    assert entries(Path('test-run')) == []


def test_torch_compile_works_after_a_tracker_entered_later_ends_later_than_ours() -> None:
    class Other(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    ours = ModuleMemoryRecorder(torch.nn.Linear(2, 2))
    other = Other()
    ours.start()
    other.__enter__()
    ours.stop()
    other.__exit__(None, None, None)
    assert not is_in_torch_dispatch_mode()
