"""Where in this host's memory a model lies, and how much malloc has given out."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from composer_memprof.recorders.tensors import parts_of, tensors_in


class _MallInfo(ctypes.Structure):
    """What ``mallinfo2`` returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            'arena',
            'ordblks',
            'smblks',
            'hblks',
            'hblkhd',
            'usmblks',
            'fsmblks',
            'uordblks',
            'fordblks',
            'keepcost',
        ]
    ]


@functools.cache
def _mallinfo() -> Optional[Callable[[], Any]]:
    function = getattr(ctypes.CDLL(None), 'mallinfo2', None) if sys.platform == 'linux' else None
    if function is not None:
        function.restype = _MallInfo
    return function


def allocated_bytes() -> int:
    """The bytes that malloc has given out in this process; 0 where it does not say (it is not glibc's, or before 2.33)."""
    read = _mallinfo()
    if read is None:
        return 0
    found = read()
    return found.uordblks + found.hblkhd


def host_memory(model: Module, optimizers: Iterable[Optimizer]) -> Iterator[tuple[int, int]]:
    """Address and bytes of each storage of a parameter, a gradient, or the optimizers' state, on the CPU, that is not pinned.

    >>> import torch
    >>> layer = torch.nn.Linear(4, 2, bias=False)
    >>> list(host_memory(layer, [])) == [(layer.weight.data_ptr(), 32)]
    True
    """
    for tensor in _tensors(model, optimizers):
        for part in parts_of(tensor):
            # Who registered pinned memory has marked it already, perhaps for good.
            if part.device.type == 'cpu' and not part.is_pinned():
                storage = part.untyped_storage()
                yield storage.data_ptr(), storage.nbytes()


def _tensors(model: Module, optimizers: Iterable[Optimizer]) -> Iterator[Tensor]:
    for parameter in model.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad
    for optimizer in optimizers:
        for state in optimizer.state.values():
            yield from tensors_in(state)
