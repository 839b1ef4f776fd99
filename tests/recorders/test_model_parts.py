"""Parts of a model that its training does not train."""

from __future__ import annotations

import copy

import torch
from torch import nn

from composer_memprof.recorders.allocations.model_parts import (
    copies_in,
    hidden_modules,
    unused_gradients,
    without_gradient,
)


class Student(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(each for each in model.parameters() if each.requires_grad)


def test_a_copy_of_the_rest_or_of_a_part_is_found_unless_it_is_trained() -> None:
    model = Student()
    model.average = copy.deepcopy(model).requires_grad_(False)
    assert copies_in(model, [_optimizer(model)]) == {'average': 2 * (16 + 4) * 4}
    twins = nn.Module()
    twins.first, twins.second = Student(), Student()
    assert copies_in(twins, [_optimizer(twins)]) == {}
    twins.second.requires_grad_(False)
    assert list(copies_in(twins, [_optimizer(twins)])) == ['second']


def test_a_part_that_no_optimizer_has_or_that_no_gradient_reached_is_found() -> None:
    model = Student()
    optimizer = _optimizer(model)
    model.guide = nn.Linear(4, 4)
    assert list(without_gradient(model, [optimizer])) == ['guide']
    model.guide.requires_grad_(False)
    assert without_gradient(model, [optimizer]) == {}

    model = Student()
    model.extra = nn.Linear(4, 4)
    optimizer = _optimizer(model)
    assert without_gradient(model, [optimizer]) == {}
    model.body(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert list(without_gradient(model, [optimizer])) == ['extra']


def test_a_module_that_hides_from_the_parameters_is_found_by_its_attribute() -> None:
    model, teacher = Student(), Student()
    object.__setattr__(model, 'teacher', teacher)
    optimizer = _optimizer(model)
    assert [name for name, _ in hidden_modules(model)][:2] == ['teacher', 'teacher.body']
    assert list(without_gradient(model, [optimizer])) == ['teacher']


def test_frozen_layers_that_are_alike_are_no_copies_of_each_other() -> None:
    model = nn.Module()
    model.blocks = nn.ModuleList([Student() for _ in range(3)]).requires_grad_(False)
    model.adapter = nn.Linear(4, 2)
    assert copies_in(model, [_optimizer(model)]) == {}


def test_gradients_that_no_optimizer_has_are_found_by_part() -> None:
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
    model.adapter = nn.Linear(4, 4)
    x = torch.ones(1, 4)
    model.adapter(model.blocks[1](model.blocks[0](x))).sum().backward()
    of_adapter = torch.optim.SGD(model.adapter.parameters(), 0.1)
    assert unused_gradients(model, [of_adapter]) == {'blocks.0': 80, 'blocks.1': 80}
    assert unused_gradients(model, [torch.optim.SGD(model.parameters(), 0.1)]) == {}
    assert unused_gradients(model, []) == {}
