"""Problems of loops without Composer's Trainer, recorded with ``profile``."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from composer_memprof import MemorySnapshot, profile
from tests.problems.problem import Problem, line_of

_ROWS = 256


class Net(nn.Module):
    """Activations of 1 MiB a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 1024), nn.Linear(1024, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def _trains(*callbacks: Any, with_loss: Callable[[torch.Tensor], None], batches: int = 8) -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    with profile(*callbacks, run_name='test-run', model=model, optimizers=[optimizer]) as run:
        for _ in range(batches):
            loss = F.mse_loss(model(torch.randn(_ROWS, 64)), torch.randn(_ROWS, 1))
            loss.backward(retain_graph=True)
            optimizer.step()
            optimizer.zero_grad()
            with_loss(loss)
            run.step(samples=_ROWS)


def _sums_losses() -> None:
    total = torch.zeros(())

    def add(loss: torch.Tensor) -> None:
        nonlocal total
        total = total + loss

    _trains(MemorySnapshot(), with_loss=add)
    del total
    gc.collect()


def _keeps_losses() -> None:
    losses: list[torch.Tensor] = []
    _trains(MemorySnapshot(), with_loss=losses.append)


#: The hidden layer, the inputs and the targets.
_KEPT = 4 * _ROWS * (1024 + 64 + 1)

PROBLEMS: dict[str, Problem] = {
    'a sum of losses': Problem(
        _sums_losses,
        ('leak', line_of(Net.forward, 'relu'), 'total', 'with its graph'),
        'Stop keeping',
        _KEPT,
    ),
    'a list of losses': Problem(
        _keeps_losses,
        ('leak', line_of(Net.forward, 'relu'), 'losses of _keeps_losses, a list of', 'with its graph'),
        'Stop keeping',
        _KEPT,
    ),
}
