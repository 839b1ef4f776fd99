"""Tensors that live already, and what holds them.

Python's garbage collector knows every tensor that Python code holds. It does not know what only C++ holds: the buckets
of DistributedDataParallel, and what autograd keeps of a forward whose backward has not run.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Optional

import torch
from torch import nn

from composer_memprof.messages import errors_logged
from composer_memprof.recorders.torch_private import ddp, is_found
from composer_memprof.recorders.torch_private.tensors import FLATTEN

DDP_BUCKETS = "DDP's buckets"
#: The holder of tensors that were found by the garbage collector alone.
ELSEWHERE = 'elsewhere'

#: Objects that a search visits before it gives up: about 0.3 s.
_MOST_VISITED = 300_000
#: What leads from one object to the whole process.
_NOT_ENTERED = (
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.FrameType),
    *(types.CodeType, types.GeneratorType, torch.Tensor),
)


def live_tensors() -> list[torch.Tensor]:
    """Every tensor that Python holds, and the gradients of those that are leaves.

    A wrapper (a DTensor) is left out: the tensors inside of it are here.
    """
    kinds = {kind for kind in _subclasses(torch.Tensor) if not hasattr(kind, FLATTEN)}
    found: list[torch.Tensor] = [each for each in gc.get_objects() if type(each) in kinds]
    return [*found, *(gradient for gradient in map(_gradient, found) if gradient is not None)]


def _subclasses(kind: type) -> Iterator[type]:
    yield kind
    children: list[type] = type.__subclasses__(kind)
    for derived in children:
        yield from _subclasses(derived)


def _gradient(tensor: torch.Tensor) -> Optional[torch.Tensor]:
    with errors_logged('a tensor refused to be looked at'):  # a class of somebody else's may refuse anything
        return tensor.grad if tensor.is_leaf and tensor.requires_grad else None
    return None


def nearest_holders(wanted: Collection[int], holders: Mapping[str, Any]) -> dict[int, str]:
    """The holder of each tensor: the one from which the fewest references lead to it.

    >>> weight = torch.ones(2)
    >>> nearest_holders({id(weight)}, {'far': {'a': [{'b': weight}]}, 'near': [weight]}) == {id(weight): 'near'}
    True

    Args:
        wanted (Collection[int]): ``id`` of each tensor.
        holders (Mapping[str, Any]): objects by name. Of two that are as near the first counts.

    Returns:
        dict: names by ``id``, without the tensors that were not found.
    """
    found: dict[int, str] = {}
    visited: set[int] = set()
    level = [(name, holder) for name, holder in holders.items()]
    while level and len(found) < len(wanted) and len(visited) < _MOST_VISITED:
        following = []
        for name, each in level:
            if id(each) in visited:
                continue
            visited.add(id(each))
            if id(each) in wanted:
                found[id(each)] = name
            elif not isinstance(each, _NOT_ENTERED):
                following += [(name, inner) for inner in gc.get_referents(each) if gc.is_tracked(inner)]
        level = following
    return found


def bucket_bytes(model: nn.Module) -> dict[torch.device, int]:
    """The bytes of the buckets in which DistributedDataParallel reduces gradients, by device.

    Those of a model whose gradients are views of the buckets are left out: they count as gradients.
    """
    sizes: dict[torch.device, int] = {}
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel) and is_found(ddp.logging_data):
            if module.gradient_as_bucket_view and any(each.grad is not None for each in module.parameters()):
                continue
            device = next(module.parameters()).device
            sizes[device] = sizes.get(device, 0) + sum(ddp.bucket_sizes(module))
    return sizes


def with_inner_optimizers(optimizers: Iterable[torch.optim.Optimizer]) -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers, and those that they wrap."""
    found: dict[int, torch.optim.Optimizer] = {}
    waiting = list(optimizers)
    while waiting:
        optimizer = waiting.pop(0)
        if id(optimizer) in found:
            continue
        found[id(optimizer)] = optimizer
        for value in vars(optimizer).values():
            inner = value if isinstance(value, (list, tuple)) else [value]
            waiting += [each for each in inner if isinstance(each, torch.optim.Optimizer)]
    return tuple(found.values())
