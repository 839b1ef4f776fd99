"""The memory that autograd keeps for a backward pass, and the tensor whose graph keeps it.

>>> import torch
>>> weight = torch.ones(4, requires_grad=True)
>>> given = torch.ones(4)
>>> total = (weight * given).sum()
>>> saved_behind(total, set()) >= {given.untyped_storage().data_ptr()}
True
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from composer_memprof.messages import errors_logged

#: As autograd's nodes name what they save: ``_saved_self``, ``_saved_mat2``.
_SAVED = '_saved_'
#: Most nodes of a graph that are looked at.
_MOST_NODES = 20_000


def saved_behind(tensor: torch.Tensor, seen: set[Any]) -> set[int]:
    """The addresses of the storages that the graph of a tensor keeps.

    Args:
        tensor (torch.Tensor): with a graph.
        seen (set): the nodes of other graphs, which are left out. Those of this one are added.
    """
    found: set[int] = set()
    pending = [tensor.grad_fn]
    while pending and len(seen) < _MOST_NODES:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found.update(each.untyped_storage().data_ptr() for each in _saved(node))
        pending += [following for following, _ in node.next_functions]
    return found


def _saved(node: Any) -> Iterator[torch.Tensor]:
    """The tensors that a node has saved; none if a backward pass has freed them."""
    for name in dir(node):
        if name.startswith(_SAVED):
            with errors_logged('a graph has freed what it had saved'):
                value = getattr(node, name)
                yield from (each for each in (value if isinstance(value, tuple) else (value,)) if _is_plain(each))


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided
