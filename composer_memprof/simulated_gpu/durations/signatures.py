"""What the duration of an operator's call follows from, as a key: shapes, strides and data types, and all other values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor


def signature(values: Iterable[Any]) -> tuple[Any, ...]:
    """Equal for calls that take equally long.

    >>> import torch
    >>> narrow, wide = torch.zeros(2, 3), torch.zeros(3, 2)
    >>> signature((narrow, 1)) == signature((torch.ones(2, 3), 1)), signature((narrow, 1)) == signature((wide, 1))
    (True, False)
    """
    parts: list[Any] = []
    for value in values:
        if isinstance(value, Tensor):
            parts += (value.shape, value.dtype)
            if not value.is_contiguous():
                strides = value.stride()
                # how much of an expanded tensor is read, its storage says
                parts += (strides, value.untyped_storage().nbytes() if 0 in strides else 0)
        elif isinstance(value, (list, tuple)):
            parts.append(signature(value))
        else:
            parts.append(value)
    return tuple(parts)
