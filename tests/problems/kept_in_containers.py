"""Memory of the device that is kept in containers: caches and queues."""

from __future__ import annotations

import functools
import queue
from typing import Any, Optional

import torch
from composer.core import Callback, State
from composer.loggers import Logger

from tests.conftest import Regression
from tests.problems.kept import KeepsMasks, leak, of_snapshot
from tests.problems.problem import Problem
from tests.support.callbacks.host_memory import MIB


def _table(length: int) -> torch.Tensor:
    return torch.ones(length)


class UsesTables(Regression):
    """Takes a table of another length in each batch."""

    def __init__(self, entries: Optional[int] = None) -> None:
        super().__init__()
        self.length = MIB // 4
        self.table = functools.lru_cache(maxsize=entries)(_table)

    def forward(self, batch: Any) -> torch.Tensor:
        self.length += 1
        return super().forward(batch) * self.table(self.length)[0]


class FillsReplay(Callback):
    """Keeps samples up to a limit, which it has not reached yet."""

    def __init__(self) -> None:
        self.samples: list[torch.Tensor] = []
        self.capacity = 50

    def batch_end(self, state: State, logger: Logger) -> None:
        self.samples.append(torch.ones(MIB // 4))
        del self.samples[: -self.capacity]


class Sends(Callback):
    """Sends something of each batch to a queue that nobody reads."""

    def __init__(self, size: int = 0) -> None:
        self.outbox: queue.Queue[Any] = queue.Queue(size)

    def batch_end(self, state: State, logger: Logger) -> None:
        self.outbox.put(torch.ones(MIB // 4))


PROBLEMS: dict[str, Problem] = {
    'a cache beside a replay buffer that fills up': Problem(
        of_snapshot(KeepsMasks, FillsReplay), *leak(KeepsMasks._mask, 'torch.ones', 'KeepsMasks.masks', MIB)
    ),
    'the cache of a function': Problem(
        of_snapshot(UsesTables), *leak(_table, 'torch.ones', 'UsesTables.table, a cache of', MIB)
    ),
    'a queue that nobody reads': Problem(
        of_snapshot(Regression, Sends), *leak(Sends.batch_end, 'put', 'Sends.outbox.queue, a deque of', MIB)
    ),
}
