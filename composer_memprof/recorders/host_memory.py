"""Where in this host's memory a model lies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from composer_memprof.recorders.tensors import parts_of, tensors_in


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
