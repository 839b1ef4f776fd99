"""What keeps an object through torch's C++ alone, where Python's garbage collector sees no reference.

>>> import torch
>>> weight = torch.ones(2, requires_grad=True)
>>> weight.grad = torch.ones(2)
>>> [each is weight for each in owners_of_gradient(weight.grad)]
[True]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from composer_memprof.recorders.modules.holders import live_tensors

#: Nodes of graphs that are looked at in a search.
_MOST_NODES = 20_000


def is_context(obj: Any) -> bool:
    """True for the ``ctx`` of a user's ``torch.autograd.Function``."""
    return isinstance(obj, BackwardCFunction)


def owners_of_gradient(gradient: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors whose ``grad`` it is."""
    yield from (each for each in live_tensors() if each.is_leaf and each.grad is gradient)


def results_of(context: Any) -> Iterator[torch.Tensor]:
    """The tensors whose graph has the ``ctx``."""
    left = _MOST_NODES
    for tensor in live_tensors():
        nodes, seen = [tensor.grad_fn], {id(context)}
        while nodes and left:
            left -= 1
            node = nodes.pop()
            if node is context:
                yield tensor
                break
            if node is not None and id(node) not in seen:
                seen.add(id(node))
                nodes += [each for each, _ in node.next_functions]
