"""The names of modules and parameters in reports: those of the model that the user wrote.

Training puts modules around the user's own: data parallelism, activation checkpoints, ``torch.compile``. They are
recognized by their type, never by a part of a name, because a model may have an attribute ``module`` of its own.

>>> model = torch.nn.Sequential(torch.compile(torch.nn.Linear(2, 2)))
>>> [name for name, _ in model.named_modules()]
['', '0', '0._orig_mod']
>>> [(name, class_name(module)) for name, module in named_modules(model)]
[('', 'Sequential'), ('0', 'Linear')]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch
from torch import nn

from composer_memprof.recorders.torch_private import wrappers
from composer_memprof.recorders.torch_private.wrappers import class_before_sharding, wrapped_by

#: The module of ``torch_private`` that this uses. Without it, names keep the parts of wrappers.
NEEDS = (wrappers,)
#: The name for what belongs to no module, most often the loss.
OUTSIDE = '(outside of modules)'
_Tensor = TypeVar('_Tensor', bound=torch.Tensor)


def named_modules(model: nn.Module, with_wrappers: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """The user's own modules with their dotted names, each module once, a module before its submodules.

    Args:
        model (Module): with or without wrappers, around it or in it.
        with_wrappers (bool): wrappers too, each under the name of the module that it wraps, and just before it.
    """
    return _walk(model, '', with_wrappers, set())


def _walk(module: nn.Module, name: str, with_wrappers: bool, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    wrapped = wrapped_by(module)
    if wrapped is None or with_wrappers:
        yield name, module
    for part, child in module.named_children():
        yield from _walk(child, name if child is wrapped else f'{name}.{part}'.lstrip('.'), with_wrappers, seen)


def own_module(module: nn.Module) -> nn.Module:
    """The user's module inside of any wrappers around it."""
    wrapped = wrapped_by(module)
    return module if wrapped is None else own_module(wrapped)


def module_named(model: nn.Module, name: str) -> nn.Module:
    """The user's module with that name.

    Raises:
        KeyError: if there is none.
    """
    return dict(named_modules(model))[name]


def class_name(module: nn.Module) -> str:
    """The name of the class that the user gave the module, also where FSDP2 has made another one of it."""
    return class_before_sharding(type(own_module(module))).__name__


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """As ``model.named_parameters()``, with the user's own names."""
    return _each_once(
        (f'{name}.{part}'.lstrip('.'), parameter)
        for name, module in named_modules(model, with_wrappers=True)
        for part, parameter in module.named_parameters(recurse=False)
    )


def named_buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """As ``model.named_buffers()``, with the user's own names."""
    return _each_once(
        (f'{name}.{part}'.lstrip('.'), buffer)
        for name, module in named_modules(model, with_wrappers=True)
        for part, buffer in module.named_buffers(recurse=False)
    )


def _each_once(named: Iterable[tuple[str, _Tensor]]) -> Iterator[tuple[str, _Tensor]]:
    seen: set[int] = set()
    for name, tensor in named:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor
