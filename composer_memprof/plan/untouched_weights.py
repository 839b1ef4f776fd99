"""Builds a model whose weights nobody reads: large ones get address space and no values, which costs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import torch

from composer_memprof.recorders.torch_private.dispatch_modes import TorchDispatchMode

#: Smaller tensors are filled as always: a model may read a setting from one.
_LARGE = 1 << 16


class UntouchedWeights(TorchDispatchMode):
    """Within the block, large tensors on the host are not initialized.

    >>> with UntouchedWeights():
    ...     layer = torch.nn.Linear(4096, 4096)
    >>> layer.weight.shape
    torch.Size([4096, 4096])
    """

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), keywords: Optional[Mapping[str, Any]] = None
    ) -> Any:
        name = function.name().removeprefix('aten::').partition('.')[0]
        changed = arguments[0] if arguments else None
        if name.endswith('_') and _is_large(changed):
            return changed
        if name in ('rand', 'randn', 'zeros', 'ones', 'full'):
            size = arguments[0]
            if isinstance(size, (list, tuple)) and _count(size) > _LARGE:
                return torch.empty(size, **(keywords or {}))
        return function(*arguments, **(keywords or {}))


def _is_large(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == 'cpu' and value.numel() > _LARGE


def _count(size: Sequence[int]) -> int:
    count = 1
    for length in size:
        count *= length
    return count
