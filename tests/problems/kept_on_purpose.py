"""Healthy runs that keep memory of the device, of which there is no more after a while."""

from __future__ import annotations

import collections
import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from composer.core import Callback, State
from composer.loggers import Logger
from torch.utils.data import DataLoader

from composer_memprof import HostRSS, MemorySnapshot
from tests.conftest import Noise, Regression, loader, train
from tests.problems.kept import KeepsRarely, of_snapshot
from tests.problems.kept_in_containers import FillsReplay, Sends, UsesTables
from tests.support.callbacks.host_memory import MIB


class KeepsLast(Regression):
    """Keeps the newest hidden tensor, whose size changes, in place of the one before."""

    def forward(self, batch: Any) -> torch.Tensor:
        self.last = torch.ones((MIB // 4) * (1 + len(batch[0]) % 3))
        return super().forward(batch)


class KeepsLastTwo(Callback):
    """Keeps what the last two batches returned."""

    def __init__(self) -> None:
        self.newest: collections.deque[torch.Tensor] = collections.deque(maxlen=2)

    def batch_end(self, state: State, logger: Logger) -> None:
        self.newest.append(torch.ones(MIB // 4))


class KeepsLastFifty(KeepsLastTwo):
    """Keeps what the last fifty batches returned: it has not as many yet."""

    def __init__(self) -> None:
        self.newest = collections.deque(maxlen=50)


class KeepsNewest(Callback):
    """Keeps what the last ten batches returned, in a list that it cuts."""

    def __init__(self) -> None:
        self.newest: list[torch.Tensor] = []

    def batch_end(self, state: State, logger: Logger) -> None:
        self.newest = [*self.newest, torch.ones(MIB // 4)][-10:]


class FillsLazily(KeepsRarely):
    """Makes three tensors when they are needed first, and no more."""

    def forward(self, batch: Any) -> torch.Tensor:
        return super().forward(batch) if len(self.seen) < 3 else Regression.forward(self, batch)


class Averages(Callback):
    """A second copy of the weights, updated in place."""

    def fit_start(self, state: State, logger: Logger) -> None:
        self.average = copy.deepcopy(state.model.state_dict())

    def batch_end(self, state: State, logger: Logger) -> None:
        for name, value in state.model.state_dict().items():
            self.average[name].mul_(0.9).add_(value, alpha=0.1)


class FillsCache(Regression):
    """A cache by the length of a batch, which is full after the first batch."""

    masks: dict[int, torch.Tensor] = {}

    def forward(self, batch: Any) -> torch.Tensor:
        return super().forward(batch) * self.masks.setdefault(len(batch[0]), torch.ones(MIB // 4))[0]


class CachesSamples(Noise):
    """Keeps each sample of the first epoch, and takes it from there in the others."""

    def __init__(self) -> None:
        super().__init__(80)
        self.cache: dict[int, torch.Tensor] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = torch.ones(MIB // 4 // 8)
        time.sleep(0.002)
        return super().__getitem__(index)


def _caches_samples() -> None:
    data = DataLoader(CachesSamples(), batch_size=8)
    train(MemorySnapshot(), HostRSS(interval=0.02), train_dataloader=data, max_duration='5ep')


HEALTHY: dict[str, Callable[[], None]] = {
    'plain': of_snapshot(Regression),
    'a few tensors made when they are needed': of_snapshot(FillsLazily, schedule={'active': '20ba'}, batches=22),
    'microbatches': of_snapshot(Regression, device_train_microbatch_size=2),
    'the newest result kept': of_snapshot(KeepsLast, train_dataloader=lambda: loader(8, batch_size=7)),
    'the last two results kept': of_snapshot(Regression, KeepsLastTwo),
    'the last fifty results kept': of_snapshot(Regression, KeepsLastFifty),
    'the newest results in a list that is cut': lambda: train(
        MemorySnapshot(), HostRSS(interval=0.02), KeepsNewest(), batches=60
    ),
    'a replay buffer that fills up': of_snapshot(Regression, FillsReplay),
    'a cache of a function that fills up': of_snapshot(lambda: UsesTables(entries=50)),
    'a queue that fills up': of_snapshot(Regression, lambda: Sends(50)),
    'an average of the weights': of_snapshot(Regression, Averages),
    'a cache of the samples': _caches_samples,
    'a cache that is full': of_snapshot(FillsCache),
    'evaluation': of_snapshot(Regression, eval_dataloader=lambda: loader(2), eval_interval='2ba'),
}
