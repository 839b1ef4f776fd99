"""Which tensors keep the graphs of forward passes, and of how many: a graph leads to a parameter once for each pass.

What a node has saved is left alone. To look at it would run what the user hooked to it, as the forward pass of a checkpoint.

>>> import torch
>>> from composer_memprof.recorders.allocations.kept_graphs import uses_of_leaves
>>> weight = torch.ones(4, requires_grad=True)
>>> total = sum((weight * torch.rand(4)).sum() for _ in range(3))
>>> [list(uses.values()) for uses in uses_of_leaves([total]).values()]
[[3]]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from composer_memprof.messages import errors_logged
from composer_memprof.recorders.torch_private.graph_tasks import sequence_number

#: The node in which a graph ends at a leaf. torch has one for each leaf.
_LEAF = 'torch::autograd::AccumulateGrad'
#: Most nodes of all graphs that are looked at.
_MOST_NODES = 20_000


def uses_of_leaves(tensors: Iterable[torch.Tensor]) -> dict[int, Counter[Any]]:
    """The edges of each tensor's graph that lead to a leaf, by the tensor's ``id`` and the leaf's node.

    A graph that is part of another tensor's counts there. Tensors whose graph leads to no leaf are left out.

    Args:
        tensors (Iterable[Tensor]): those without a graph are left out.
    """
    roots: dict[int, Any] = {}
    for tensor in tensors:
        with errors_logged('a tensor refused to be looked at'):
            if tensor.grad_fn is not None:
                roots[id(tensor)] = tensor.grad_fn
    seen: set[Any] = set()
    newest_first = sorted(roots, key=lambda number: -sequence_number(roots[number]))
    found = {number: _uses(roots[number], seen) for number in newest_first}
    return {number: uses for number, uses in found.items() if uses}


def _uses(root: Any, seen: set[Any]) -> Counter[Any]:
    uses: Counter[Any] = Counter()
    pending = [root]
    while pending and len(seen) < _MOST_NODES:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        following = [each for each, _ in node.next_functions if each is not None]
        uses.update(each for each in following if each.name() == _LEAF)
        pending += (each for each in following if each.name() != _LEAF)
    return uses
