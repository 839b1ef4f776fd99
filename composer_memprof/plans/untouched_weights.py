"""Builds a model whose weights nobody reads: large ones get address space and no values, which costs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import torch

from composer_memprof.recorders.torch_private.dispatch_modes import TorchDispatchMode

#: Smaller tensors are filled as always: a model may read a setting from one.
_LARGE = 1 << 16
#: What initializations do to weights: fill them with numbers of a distribution, and move and scale those.
_FILLS = ('uniform_', 'normal_', 'fill_', 'zero_', 'mul_', 'add_', 'sub_', 'div_', 'clamp_', 'erfinv_')
#: What makes new ones.
_RANDOM = ('rand', 'randn')


class UntouchedWeights(TorchDispatchMode):
    """Within the block, large tensors of floating-point numbers on the host are not initialized.

    >>> with UntouchedWeights():
    ...     layer = torch.nn.Linear(4096, 4096)
    >>> layer.weight.shape
    torch.Size([4096, 4096])
    """

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), keywords: Optional[Mapping[str, Any]] = None
    ) -> Any:
        name = function.name().removeprefix('aten::').partition('.')[0]
        if name in _FILLS and _is_large(arguments[0]):
            return arguments[0]
        options = {key: value for key, value in (keywords or {}).items() if key != 'generator'}
        if name in _RANDOM:
            made = torch.empty(arguments[0], **options)
            if _is_large(made):
                return made
        return function(*arguments, **(keywords or {}))


def _is_large(tensor: torch.Tensor) -> bool:
    return tensor.device.type == 'cpu' and tensor.is_floating_point() and tensor.numel() > _LARGE
