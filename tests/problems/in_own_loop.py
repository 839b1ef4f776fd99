"""Problems of loops without Composer's Trainer, recorded with ``profile``."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from composer_memprof import MemorySnapshot, StepTimes, profile
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


class SlowRows(Dataset):
    def __len__(self) -> int:
        return 16 * 8

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.004)
        return torch.randn(64)


def _save(model: Net) -> None:
    time.sleep(0.1)
    torch.save(model.state_dict(), 'model.pt')


def _steps(batches: Iterable[torch.Tensor], after: Callable[[Net], Any] = lambda model: None) -> None:
    """Nothing says where data are loaded, and what else the loop does."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with profile(StepTimes(), run_name='test-run', model=model, optimizers=[optimizer]) as run:
        for rows in batches:
            model(rows).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            after(model)
            run.step(samples=len(rows))


def _trains_two_models() -> None:
    """Healthy: the phases follow the first model alone."""
    judge = nn.Sequential(*[nn.Linear(64, 64) for _ in range(100)])
    rows = torch.randn(_ROWS, 64)
    _steps([rows] * 20, lambda model: judge(rows).square().mean().backward())


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
    'a slow data set in a loop': Problem(
        lambda: _steps(DataLoader(SlowRows(), batch_size=8)),
        ('waits for data', line_of(SlowRows.__getitem__, 'sleep')),
        'Load data in processes of their own',
    ),
    'a slow function in a loop': Problem(
        lambda: _steps([torch.randn(8, 64)] * 12, _save),
        ("The loop's own code", line_of(_save, 'sleep')),
        'Do less in the loop',
    ),
}
HEALTHY: dict[str, Callable[[], None]] = {'a loop of two models': _trains_two_models}
