"""The shape of a batch, and its number of tokens."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Optional

import torch

from composer_memprof.recorders.tensors import tensors_in


def shapes_of(batch: Any) -> Hashable:
    """A key of the batch's shapes: equal where all tensors have the same names, shapes and dtypes, in any nesting."""
    if isinstance(batch, torch.Tensor):
        return (*batch.shape, str(batch.dtype).removeprefix('torch.'))
    if isinstance(batch, Mapping):
        return tuple((str(name), shapes_of(value)) for name, value in batch.items())
    if isinstance(batch, (list, tuple)):
        return tuple(shapes_of(value) for value in batch)
    return None


def token_shape(batch: Any) -> Optional[tuple[int, int]]:
    """(sequences, length) of a batch of tokens: of ``input_ids``, else of the first two-dimensional integer tensor."""
    named = batch.get('input_ids') if isinstance(batch, Mapping) else None
    for tensor in tensors_in(batch if named is None else named):
        if tensor.dim() == 2 and not tensor.is_floating_point() and tensor.dtype != torch.bool:
            return tensor.shape[0], tensor.shape[1]
    return None
