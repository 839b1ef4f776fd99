"""Runs with one known problem each, and healthy ones. Each trains in the current folder; ``test_problems`` reads the report."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from composer.core import Callback, State
from composer.loggers import Logger
from torch.utils.data import DataLoader

from composer_memprof import HostRSS, MemorySnapshot, StepTimes
from tests.conftest import Noise, Regression, loader, train
from tests.support.callbacks.host_memory import MIB, fresh_memory


@dataclass(frozen=True)
class Problem:
    """A run with a known cause.

    Args:
        run (Callable): trains.
        says (tuple[str, ...]): all of these are in the first sentence.
        change (str): is in the first change.
        bytes (int): that the first sentence says, within a tenth; 0 if the cause is not about memory.
    """

    run: Callable[[], None]
    says: tuple[str, ...]
    change: str
    bytes: int = 0


def line_of(function: Callable[..., Any], text: str) -> str:
    """The file and the line of a statement, as reports name them."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [first + place for place, line in enumerate(lines) if text in line]
    return f'problems.py:{number} {function.__name__}'


# -- memory of the device that is kept ----------------------------------------------------------------------------------


class KeepsHidden(Regression):
    """Appends a tensor to a list in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, batch: Any) -> torch.Tensor:
        self.seen.append(torch.ones(MIB // 4))
        return super().forward(batch)


class KeepsInLoss(KeepsHidden):
    def forward(self, batch: Any) -> torch.Tensor:
        return Regression.forward(self, batch)

    def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
        self.seen.append(torch.zeros(2 * MIB // 4))
        return super().loss(outputs, batch)


class KeepsInCallback(Callback):
    """A logger that keeps a tensor of each batch."""

    def __init__(self) -> None:
        self.history: list[torch.Tensor] = []

    def after_loss(self, state: State, logger: Logger) -> None:
        self.history.append(torch.zeros(3 * MIB // 4))


class KeepsInHooks(Regression):
    """Adds a hook in each forward, which holds a tensor in its closure."""

    def forward(self, batch: Any) -> torch.Tensor:
        scale = torch.ones(MIB // 4)
        self.net[0].register_forward_hook(lambda module, given, result: result * scale[0])
        return super().forward(batch)


class KeepsLast(Regression):
    """Healthy: keeps the newest hidden tensor, whose size changes, in place of the one before."""

    def forward(self, batch: Any) -> torch.Tensor:
        self.last = torch.ones((MIB // 4) * (1 + len(batch[0]) % 3))
        return super().forward(batch)


def of_snapshot(model: torch.nn.Module, *callbacks: Callback, **more: Any) -> Callable[[], None]:
    return lambda: train(MemorySnapshot(), *callbacks, model=model, batches=8, **more)


# -- data that comes late ---------------------------------------------------------------------------------------------


class SlowNoise(Noise):
    def __init__(self, samples: int, seconds: float) -> None:
        super().__init__(samples)
        self.seconds = seconds

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.seconds)
        return super().__getitem__(index)


def slow_collate(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    time.sleep(0.05)
    return [torch.stack(each) for each in zip(*samples)]


def of_loader(data: Noise, **more: Any) -> Callable[[], None]:
    return lambda: train(
        StepTimes(), MemorySnapshot(), train_dataloader=DataLoader(data, batch_size=8, **more), max_duration='20ba'
    )


# -- memory of the host that is kept ------------------------------------------------------------------------------------


class LeakyNoise(Noise):
    """Each process keeps 2 MiB more with each sample."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.kept: list[Any] = []

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.kept += [fresh_memory(), fresh_memory()]
        time.sleep(0.004)
        return super().__getitem__(index)


def of_host(data: Noise, **more: Any) -> Callable[[], None]:
    return lambda: train(HostRSS(), train_dataloader=DataLoader(data, batch_size=1, **more))


PROBLEMS: dict[str, Problem] = {
    'a list in forward': Problem(
        of_snapshot(KeepsHidden()), ('leak', line_of(KeepsHidden.forward, 'torch.ones')), 'Stop keeping', MIB
    ),
    'a list in the loss': Problem(
        of_snapshot(KeepsInLoss()), ('leak', line_of(KeepsInLoss.loss, 'torch.zeros')), 'Stop keeping', 2 * MIB
    ),
    'a logger': Problem(
        of_snapshot(Regression(), KeepsInCallback()),
        ('leak', line_of(KeepsInCallback.after_loss, 'torch.zeros')),
        'Stop keeping',
        3 * MIB,
    ),
    'a closure in a hook': Problem(
        of_snapshot(KeepsInHooks()), ('leak', line_of(KeepsInHooks.forward, 'torch.ones')), 'Stop keeping', MIB
    ),
    'a slow data set, no workers': Problem(
        of_loader(SlowNoise(160, 0.005)), ('waits for data',), 'workers, such as num_workers'
    ),
    'a slow data set, two workers': Problem(
        of_loader(SlowNoise(160, 0.02), num_workers=2), ('waits for data',), 'num_workers (2)'
    ),
    'a slow collate function': Problem(
        of_loader(Noise(160), collate_fn=slow_collate), ('waits for data',), 'workers, such as num_workers'
    ),
    'two workers that leak': Problem(
        of_host(LeakyNoise(150), num_workers=2), ('Host memory grows', '2 DataLoader workers'), 'Look in', 2 * MIB
    ),
}

HEALTHY: dict[str, Callable[[], None]] = {
    'plain': of_snapshot(Regression()),
    'microbatches': of_snapshot(Regression(), device_train_microbatch_size=2),
    'the newest result kept': of_snapshot(KeepsLast(), train_dataloader=loader(8, batch_size=7)),
    'fast data': of_loader(Noise(160)),
    'evaluation': of_snapshot(Regression(), eval_dataloader=loader(2), eval_interval='2ba'),
    'no leak on the host': of_host(Noise(100)),
}
