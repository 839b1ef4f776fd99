"""Parts of a model that its training does not train: copies of it, such as an average, and models that only teach it.

>>> import copy
>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(2, 2))
>>> model.average = copy.deepcopy(model).requires_grad_(False)
>>> copies_in(model, [torch.optim.SGD(model[0].parameters(), 0.1)])
{'average': 24}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from composer_memprof.recorders.modules.names import named_modules

#: In the names of modules that are not trained, before a step has shown which are.
_TEACH = ('teacher', 'reference', 'ref_model', 'frozen')
#: Parameters that a part has at least: one layer may be like another.
_LEAST_PARAMETERS = 2
#: Levels of names that tell the parts apart whose gradients are not used: ``blocks.0``.
_DEPTH = 2


def hidden_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that are attributes of a model's modules without being parts of it, with all of theirs, and their names."""
    parts = {id(module) for module in model.modules()}
    for name, module in list(named_modules(model)):
        for attribute, value in list(vars(module).items()):
            if not isinstance(value, nn.Module) or id(value) in parts:
                continue
            parts.update(id(each) for each in value.modules())
            for inner, each in named_modules(value):
                yield '.'.join(filter(None, [name, attribute, inner])), each


def copies_in(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, int]:
    """The bytes of the parts that have the same parameters as another part or as all the rest, and are not trained."""
    trained = _trained(optimizers)
    modules = {name: each for name, each in named_modules(model) if len(_shapes(each)) >= _LEAST_PARAMETERS}
    found: dict[str, int] = {}
    for name, module in modules.items():
        if not name or name.startswith(tuple(f'{copy}.' for copy in found)):
            continue
        if any(id(each) in trained and each.requires_grad for each in module.parameters()):
            continue
        shapes = _shapes(module)
        others = (other for other in modules.values() if other is not module and _is_trained(other, trained))
        if any(_shapes(other, without=module) == shapes for other in others):
            found[name] = _bytes_of(module)
    return found


def unused_gradients(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, int]:
    """The bytes of gradients that no optimizer uses, by part of the model: somebody has forgotten to freeze it.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> optimizer = torch.optim.SGD(model[1].parameters(), 0.1)
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> unused_gradients(model, [optimizer])
    {'0': 24}
    """
    trained = _trained(optimizers)
    found: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if id(parameter) not in trained and parameter.grad is not None:
            part = '.'.join(name.split('.')[:-1][:_DEPTH])
            found[part] = found.get(part, 0) + parameter.grad.nbytes
    return found if trained else {}


def without_gradient(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, int]:
    """The bytes of the outermost parts whose activations are kept for a backward pass that never reaches them, as far as that is known.

    No optimizer has their parameters; or they are in evaluation mode, or have had no gradient, or are called a teacher.
    """
    trained = _trained(optimizers)
    stepped = {id(parameter) for optimizer in optimizers for parameter, state in optimizer.state.items() if state}
    found: dict[str, int] = {}
    for name, module in [*named_modules(model), *hidden_modules(model)]:
        parameters = [each for each in module.parameters() if each.requires_grad]
        if not name or not parameters or name.startswith(tuple(f'{outer}.' for outer in found)):
            continue
        never = all(id(each) not in stepped and each.grad is None for each in parameters)
        is_teacher = (
            not any(id(each) in trained for each in parameters)
            or (never and bool(stepped))
            or (never and model.training and not module.training)
            or (never and any(word in name.lower() for word in _TEACH))
        )
        if is_teacher:
            found[name] = _bytes_of(module)
    return found


def _is_trained(module: nn.Module, trained: set[int]) -> bool:
    return any(id(each) in trained for each in module.parameters())


def _trained(optimizers: Iterable[torch.optim.Optimizer]) -> set[int]:
    return {id(each) for optimizer in optimizers for group in optimizer.param_groups for each in group['params']}


def _bytes_of(module: nn.Module) -> int:
    return sum(each.nbytes for each in [*module.parameters(), *module.buffers()])


def _shapes(module: nn.Module, without: nn.Module | None = None) -> dict[str, torch.Size]:
    """The shapes of a module's parameters, by their names within it; those of one part may be left out."""
    others = {id(each) for each in without.parameters()} if without is not None else set()
    return {name: each.shape for name, each in module.named_parameters() if id(each) not in others}
