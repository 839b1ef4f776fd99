"""Names of modules and parameters in reports: those of the model that the user wrote."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
    offload_wrapper,
)

from composer_memprof.recorders.allocations.annotations import Annotations
from composer_memprof.recorders.modules.model import find_root
from composer_memprof.recorders.modules.names import (
    class_name,
    named_buffers,
    named_modules,
    named_parameters,
    own_module,
)
from composer_memprof.recorders.modules.recorder import ModuleMemoryRecorder
from composer_memprof.recorders.saved_tensors.recorder import SavedTensorsRecorder


class Block(nn.Module):
    """With an attribute that is called as DDP's is."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.module(x)).relu()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Sequential(Block(), Block())
        self.again = self.module[0]  # a module with two names
        self.head = nn.Linear(4, 4)
        self.head.weight = self.module[0].module.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.again(self.module(x)))


def of_compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend='eager')


def of_checkpointed(module: nn.Module) -> Any:
    return checkpoint_wrapper(module)


WRAPPERS: dict[str, Any] = {
    'none': lambda module: module,
    'a checkpoint': of_checkpointed,
    'offloading': offload_wrapper,
    'torch.compile': of_compiled,
    'torch.compile in a checkpoint': lambda module: of_checkpointed(of_compiled(module)),
    'a checkpoint in torch.compile': lambda module: of_compiled(of_checkpointed(module)),
}


@pytest.mark.parametrize('of_model', ['none', 'DataParallel', 'torch.compile'])
@pytest.mark.parametrize('of_blocks', WRAPPERS)
def test_wrapped_models_have_the_users_names_and_classes(of_model: str, of_blocks: str) -> None:
    model = Model()
    modules = [(name, type(module).__name__, id(module)) for name, module in model.named_modules()]
    parameters = [(name, id(parameter)) for name, parameter in model.named_parameters()]
    buffers = [(name, id(buffer)) for name, buffer in model.named_buffers()]
    model.module[0] = model.again = WRAPPERS[of_blocks](model.module[0])
    model.module[1] = WRAPPERS[of_blocks](model.module[1])
    wrapped = {'DataParallel': nn.DataParallel, **WRAPPERS}[of_model](model)
    found = list(named_modules(wrapped))
    assert [(name, class_name(module), id(module)) for name, module in found] == modules
    assert [(name, id(parameter)) for name, parameter in named_parameters(wrapped)] == parameters
    assert [(name, id(buffer)) for name, buffer in named_buffers(wrapped)] == buffers
    everything = list(named_modules(wrapped, with_wrappers=True))
    assert len(everything) == len(list(wrapped.modules()))
    names = {id(module): name for name, module in found}
    assert all(name == names[id(own_module(module))] for name, module in everything)


def test_a_module_of_the_users_that_holds_another_as_a_wrapper_does_is_no_wrapper() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module, self._orig_mod = nn.Linear(2, 2), nn.Linear(2, 2)
            self._checkpoint_wrapped_module = nn.Linear(2, 2)

    assert [name for name, _ in named_modules(Mine())] == [name for name, _ in Mine().named_modules()]


@pytest.mark.parametrize('name', ['module.1', 'module.module.1', 'module.module.1._checkpoint_wrapped_module'])
def test_a_root_module_may_be_named_with_the_parts_of_wrappers_or_without(name: str) -> None:
    model = Model()
    model.module[1] = of_checkpointed(model.module[1])
    assert find_root(nn.DataParallel(model), name) == 'module.1'
    with pytest.raises(ValueError, match=r"root_module='modul' is not in the model, a Model; .*module\.0"):
        find_root(nn.DataParallel(model), 'modul')


@pytest.mark.parametrize('kind', list(CheckpointImpl))
def test_a_gpu_snapshots_rows_of_modules_have_the_users_names(kind: CheckpointImpl) -> None:
    model = Model()
    names = {name for name, _ in model.named_modules()}
    model.module[1] = checkpoint_wrapper(model.module[1], checkpoint_impl=kind)
    annotations = Annotations()
    annotations.follow_modules(model)
    annotations.mark('forward', 0)
    model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    annotations.leave_modules()
    found = {name for _, name in annotations.modules}
    assert {'module.1', 'module.1.module', 'head'} <= found <= names


def test_a_wrapper_and_its_module_are_one_row_and_one_call() -> None:
    model = nn.Sequential(Block(), Block())
    plain, wrapped = model, copy.deepcopy(model)
    wrapped[1] = of_checkpointed(wrapped[1])
    recorded = []
    for each in (plain, nn.DataParallel(wrapped)):
        saved = SavedTensorsRecorder(each)
        memory = ModuleMemoryRecorder(each)
        with saved, memory:
            each(torch.ones(2, 4)).sum().backward()
        result = saved.result()()
        assert result.forwards == 1
        assert memory.result is not None
        recorded.append(
            (
                {(row.name, row.type, row.calls) for row in result.modules},
                [(row.name, row.type, row.calls, row.depth) for row in memory.result.modules],
            )
        )
        assert '' not in {row.name for row in result.checkpoints}, 'the whole model'
        assert len({row.name for row in result.checkpoints}) == len(result.checkpoints)
    assert recorded[0] == recorded[1]


def test_a_wrapped_modules_checkpoint_frees_what_the_bare_ones_does() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)), nn.Linear(4, 4))
    frees = []
    for each in (model, nn.Sequential(nn.DataParallel(model[0]), model[1])):
        with SavedTensorsRecorder(each) as saved:
            each(torch.ones(2, 4, requires_grad=True)).sum().backward()
        frees.append({row.name: (row.type, row.frees_bytes) for row in saved.result()().checkpoints})
    assert frees[0] == frees[1]
    assert frees[0]['0'][1] > 0
