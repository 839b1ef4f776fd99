"""SavedTensorsHook beside a user's hooks, functions that refuse hooks, and compiled models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from composer import Trainer
from torch import Tensor, nn

from composer_memprof import SavedTensorsHook
from tests.conftest import Regression, loader
from tests.support.callbacks.saved_tensors import record

NOT_A_FUNCTION = 3


def doubling_pack(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor.clone()


def single_unpack(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def test_inside_of_a_users_pair_nothing_is_changed_and_the_result_lists_the_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4))
    packed: list[Tensor] = []

    def run() -> None:
        hidden = model[0](torch.randn(2, 4))
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: packed.append(t) or len(packed) - 1, packed.__getitem__
        ):
            hidden = model[1](hidden)
        model[2](hidden).sum().backward()

    result = record(model, run)
    assert len(packed) == 1
    (names,) = result.unseen.values()
    assert '1' in names and '2' not in names


def test_nothing_is_recorded_under_a_pair_around_the_whole_batch() -> None:
    model = nn.Linear(4, 4)
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or len(packed) - 1, packed.__getitem__):
        result = record(model, lambda: model(torch.randn(2, 4)).exp().sum().backward())
    assert len(packed) > 0
    assert result.total_bytes == 0
    assert any('around the whole batch' in what for what in result.unseen)


def test_functions_that_refuse_saved_tensor_hooks_run_in_a_window() -> None:
    model = nn.Linear(4, 4)

    def run() -> None:
        x = torch.randn(2, 4)
        scaled = torch.vmap(lambda row: row * 2)(x) + torch.func.grad(lambda value: (value * value).sum())(x)
        with torch.autograd.graph.save_on_cpu():
            hidden = model(scaled)
        hidden.exp().sum().backward()

    result = record(model, run)
    assert any('torch.func' in what for what in result.unseen)
    assert any('save_on_cpu' in what for what in result.unseen)
    assert result.total_bytes == 2 * 4 * 4  # exp's output


@pytest.mark.parametrize('way', ['whole', 'in place'])
def test_a_compiled_model_is_recorded_as_a_whole_and_not_compiled_again(way: str) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x).sin()

    torch._dynamo.reset()
    model: Any = Two()
    if way == 'whole':
        model = torch.compile(model, backend='aot_eager')
    else:
        model.compile(backend='aot_eager')
    x = torch.randn(2, 8)
    compiled = torch._dynamo.utils.counters['frames']
    model(x).sum().backward()
    before = dict(compiled)
    for _ in range(3):
        result = record(model, lambda: model(x).sum().backward())
    model(x).sum().backward()
    assert dict(compiled) == before
    assert {row.name for row in result.operations} == {'CompiledFunctionBackward'}
    assert any('compiled' in what for what in result.unseen)


def test_what_a_pack_function_returns_is_counted() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
    x = torch.randn(2, 8)
    paths = [f'{__name__}.doubling_pack', f'{__name__}.single_unpack']
    result = record(model, lambda: model(x).sum().backward(), functions=paths)
    assert result.total_bytes == (2 * 8 + 2 * 16) * 8  # copies in double of the input and ReLU's output
    identity = record(model, lambda: model(x).sum().backward(), functions=['identity_lambda', 'identity_lambda'])
    assert identity.total_bytes == 2 * 16 * 4


@pytest.mark.parametrize(
    ('functions', 'words'),
    [
        (['no_such_module.pack', 'identity_lambda'], 'no_such_module.pack'),
        ([f'{__name__}.doubling_pak', 'identity_lambda'], "did you mean 'doubling_pack'"),
        ([f'{__name__}.NOT_A_FUNCTION', 'identity_lambda'], 'is a int, not a function'),
        (['pack', 'identity_lambda'], 'dotted path'),
        (['identity_lambda'], 'a list of two'),
        ('identity_lambda', 'a list of two'),
        ([3, 4], "must be a function, its dotted path, or 'identity_lambda', not 3"),
    ],
)
def test_functions_that_can_not_be_found_are_refused_at_construction(functions: Any, words: str) -> None:
    with pytest.raises(ValueError, match='saved_tensors_funcs') as caught:
        SavedTensorsHook(saved_tensors_funcs=functions)
    assert words in str(caught.value)
    assert '\n' not in str(caught.value)


def test_a_model_without_parameters_is_refused_before_training() -> None:
    class Nothing(Regression):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential()

    settings = {'model': Nothing(), 'optimizers': torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)}
    with pytest.raises(ValueError, match='Nothing has no parameters'):
        Trainer(callbacks=SavedTensorsHook(), train_dataloader=loader(2), max_duration='1ep', device='cpu', **settings)
