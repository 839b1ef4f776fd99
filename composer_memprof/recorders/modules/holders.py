"""Tensors that live already, and what holds them.

Python's garbage collector knows every tensor that Python code holds. It does not know what only C++ holds: the buckets
of DistributedDataParallel, and what autograd keeps of a forward whose backward has not run.
"""

from __future__ import annotations

import gc
import itertools
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

import torch
from torch import nn

from composer_memprof.messages import errors_logged, log_error
from composer_memprof.recorders.torch_private import ddp, is_found
from composer_memprof.recorders.torch_private.tensors import FLATTEN, is_modified_view

DDP_BUCKETS = "DDP's buckets"
#: The holder of tensors that were found by the garbage collector alone.
ELSEWHERE = 'elsewhere'

#: Objects that a search visits before it gives up: about 0.1 s.
_MOST_VISITED = 100_000
#: Tensors from before a recording that are followed one by one, about 0.1 s; of more, the largest.
_MOST_FOLLOWED = 10_000
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


def largest(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], dict[torch.device, int]]:
    """The largest tensors, as many as can be followed one by one, and the bytes of all others by device."""
    if len(tensors) <= _MOST_FOLLOWED:
        return list(tensors), {}
    by_address: dict[int, tuple[int, torch.Tensor]] = {}
    for tensor in tensors:
        size, address = _extent(tensor)
        by_address[address] = max(by_address.get(address, (0, tensor)), (size, tensor), key=_size)
    in_order = sorted(by_address.values(), key=_size, reverse=True)
    rest: dict[torch.device, int] = {}
    for size, tensor in in_order[_MOST_FOLLOWED:]:
        rest[tensor.device] = rest.get(tensor.device, 0) + size
    return [tensor for _, tensor in in_order[:_MOST_FOLLOWED]], rest


def _size(sized: tuple[int, torch.Tensor]) -> int:
    return sized[0]


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes and the address. Its storage would take ten times as long, and may have more bytes."""
    try:
        return tensor.nbytes, tensor.data_ptr()
    except Exception:
        log_error('a tensor refused to be looked at')
        return 0, 0


def _subclasses(kind: type) -> Iterator[type]:
    yield kind
    children: list[type] = type.__subclasses__(kind)
    for derived in children:
        yield from _subclasses(derived)


def _gradient(tensor: torch.Tensor) -> Optional[torch.Tensor]:
    with errors_logged('a tensor refused to be looked at'):  # a class of somebody else's may refuse anything
        # is_leaf would make a new node for a modified view, which changes the order in which gradients are summed.
        if not tensor.requires_grad or is_modified_view(tensor):
            return None
        return tensor.grad if tensor.is_leaf else None
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
    while level:
        following: list[tuple[str, Any]] = []
        for name, each in level:
            if len(found) == len(wanted) or len(visited) == _MOST_VISITED:
                return found
            if id(each) in visited:
                continue
            visited.add(id(each))
            if id(each) in wanted:
                found[id(each)] = name
            elif not isinstance(each, _NOT_ENTERED):
                inside = itertools.islice(filter(gc.is_tracked, gc.get_referents(each)), _MOST_VISITED)
                following += [(name, inner) for inner in inside][: _MOST_VISITED - len(following)]
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
