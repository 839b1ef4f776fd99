"""Memory of a GPU that leaks until it runs out, within many batches or a few. Each problem is trained in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.problems.gpu.on_gpu import GPT, apart, trains
from tests.problems.problem import Problem, line_of

_PIECE = 8 << 20  # bytes of a batch's outputs in fp32


class KeepsOutputs(GPT):
    """Keeps so many times 8 MiB of each batch until memory runs out."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []
        self.times = times

    def loss(self, outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        self.seen.append(outputs.detach().float().repeat(1, 1, self.times))
        return super().loss(outputs, batch)


class KeepsQueue(GPT):
    """Keeps the features of an encoder that is not trained, with their graph."""

    def __init__(self) -> None:
        super().__init__()
        self.encoders = [GPT(layers=40).cuda()]  # in a list it is no part of the model
        self.queue: list[torch.Tensor] = []

    def loss(self, outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        self.queue.append(self.encoders[0](batch)[:, 0])
        return super().loss(outputs, batch)


RUNS: dict[str, Callable[[], Any]] = {
    'a leak until memory runs out': lambda: trains(lambda: KeepsOutputs(40), batches=60),
    'a leak of a few batches': lambda: trains(lambda: KeepsOutputs(367)),
    'a leak of two batches': lambda: trains(lambda: KeepsOutputs(721)),
    'features with their graph': lambda: trains(KeepsQueue, batches=40),
}
_LINE = line_of(KeepsOutputs.loss, 'repeat')
PROBLEMS: dict[str, Problem] = {
    name: Problem(apart(name, 'gpu.leaks_on_gpu'), ('Memory ran out', *says), 'Stop keeping', size)
    for name, says, size in (
        ('a leak until memory runs out', ('a leak', _LINE, 'KeepsOutputs.seen'), int(312.5 * (1 << 20))),
        ('a leak of a few batches', ('a leak', _LINE), 367 * _PIECE),
        ('a leak of two batches', ('earlier batches have left', _LINE), 721 * _PIECE),
        ('features with their graph', ('a leak', 'KeepsQueue.queue', 'with its graph'), 0),
    )
}
