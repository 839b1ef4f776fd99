"""Memory of the host that is kept from batch to batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from composer.core import Callback, State
from composer.loggers import Logger
from torch.utils.data import DataLoader, Dataset

from composer_memprof import HostRSS, Memray, StepTimes
from composer_memprof.recorders.host import copied
from tests.conftest import Noise, Regression, loader, train
from tests.problems.problem import Problem, in_own_process, line_of
from tests.support.callbacks.host_memory import MIB, fresh_memory


class LeakyNoise(Noise):
    """Each process keeps more with each sample."""

    def __init__(self, samples: int, mebibytes: int = 2, seconds: float = 0.004) -> None:
        super().__init__(samples)
        self.kept: list[Any] = []
        self.mebibytes, self.seconds = mebibytes, seconds

    def __getitem__(self, index: int) -> Any:
        self.kept += [fresh_memory() for _ in range(self.mebibytes)]
        time.sleep(self.seconds)
        return super().__getitem__(index)


class Rows(Dataset):
    """Samples as lists of Python numbers. Workers copy the pages of all that they read."""

    def __init__(self, samples: int = 800) -> None:
        self.rows: Any = [[0.5 + number * place for place in range(4000)] for number in range(samples)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.001)
        return torch.full((16,), sum(self.rows[index]) / 1e9), torch.zeros(1)


class RowsInArray(Rows):
    """Healthy: the same samples in one array."""

    def __init__(self) -> None:
        super().__init__(16)
        self.rows = np.ones((800, 4000))


class Images(Rows):
    """Healthy: a list of arrays, of which a reader copies no more than the first page."""

    def __init__(self) -> None:
        super().__init__(16)
        self.rows = [np.ones(10_000) for _ in range(800)]


class LeakyForward(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def forward(self, batch: Any) -> Any:
        self.kept.append(fresh_memory())
        return super().forward(batch)


class LeaksRarely(LeakyForward):
    """Keeps sixteen mebibytes of each 25th batch."""

    batches = 0

    def forward(self, batch: Any) -> Any:
        self.batches += 1
        if self.batches % 25 == 0:
            self.kept.append([fresh_memory() for _ in range(16)])
        return Regression.forward(self, batch)


class LeaksAt(Callback):
    """Keeps a mebibyte at each of one kind of events."""

    def __init__(self, event: str) -> None:
        self.kept: list[Any] = []
        setattr(self, event, lambda state, logger: self.kept.append(fresh_memory()))


class KeepsRows(Callback):
    """Keeps rows of text, some three thousand a batch."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def batch_end(self, state: State, logger: Logger) -> None:
        self.rows += [{'row': row, 'text': f'{row}' + 100 * 'x'} for row in range(3000)]


class FillsUp(Callback):
    """Healthy: keeps as much as it says, and is not full yet."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.capacity = 200

    def batch_end(self, state: State, logger: Logger) -> None:
        self.kept = [*self.kept, fresh_memory()][-self.capacity :]


def of_host(*callbacks: Callable[[], Callback], **more: Any) -> Callable[[], None]:
    def run() -> None:
        settings = {'batches': 100, **{name: value() if callable(value) else value for name, value in more.items()}}
        train(HostRSS(), *(make() for make in callbacks), **settings)

    return run


def grows(phase: str, keeper: str) -> tuple[tuple[str, ...], str]:
    return (
        'Host memory grows',
        f'{phase!r}',
        f'kept by {keeper}, a list of',
    ), f'Stop keeping what batches put into {keeper}'


def of_data(data: Callable[[], Noise], **more: Any) -> Callable[[], None]:
    return of_host(train_dataloader=lambda: DataLoader(data(), batch_size=1, **more))


def of_workers(data: Callable[[], Dataset], *callbacks: Callable[[], Callback]) -> Callable[[], None]:
    def run() -> None:
        loader = DataLoader(data(), batch_size=8, num_workers=2)
        train(HostRSS(interval=0.1), *(make() for make in callbacks), train_dataloader=loader, max_duration='1ep')

    return run


def read_copies_often() -> None:
    """A run of hours takes seconds here: what workers have copied is read all the while."""
    copied._FREE_S = copied._QUICK_S = 60.0


def workers_copy() -> None:
    read_copies_often()
    of_workers(Rows, StepTimes)()


def leaks_rarely() -> None:
    of_host(model=LeaksRarely, batches=300)()


def fills_up() -> None:
    of_host(FillsUp)()


PROBLEMS: dict[str, Problem] = {
    'two workers that leak': Problem(
        of_data(lambda: LeakyNoise(150), num_workers=2),
        ('Host memory grows', '2 DataLoader workers'),
        'Look in 2 DataLoader workers',
        2 * MIB,
    ),
    'a data set that leaks': Problem(
        of_data(lambda: LeakyNoise(100, 1, 0)), *grows('dataloader', 'LeakyNoise.kept'), MIB
    ),
    'a forward that leaks': Problem(of_host(model=LeakyForward), *grows('forward', 'LeakyForward.kept'), MIB),
    'a callback that leaks at the end of batches': Problem(
        of_host(lambda: LeaksAt('batch_end')), *grows('between batches', 'LeaksAt.kept'), MIB
    ),
    'a callback that leaks after backward': Problem(
        of_host(lambda: LeaksAt('after_backward')), *grows('between phases', 'LeaksAt.kept'), MIB
    ),
    'a callback that leaks after evaluations': Problem(
        of_host(lambda: LeaksAt('eval_end'), eval_dataloader=lambda: loader(1), eval_interval='2ba'),
        *grows('between batches', 'LeaksAt.kept'),
        MIB // 2,
    ),
    'a callback that keeps rows of text': Problem(of_host(KeepsRows), *grows('between batches', 'KeepsRows.rows')),
    'a forward that leaks in each 25th batch': Problem(
        in_own_process('on_host', 'leaks_rarely()'), *grows('forward', 'LeaksRarely.kept'), int(0.64 * MIB)
    ),
    'a list that workers copy': Problem(
        in_own_process('on_host', 'workers_copy()'),
        ('Host memory grows, but not without end', '2 DataLoader workers', 'Rows.rows, a list of 800', 'copy-on-write'),
        'Keep the samples of Rows.rows in a numpy array',
        800 * (4000 * 24 + 4096),
    ),
    'rows of text in a recording of memray': Problem(
        lambda: train(Memray(schedule={'skip': '2ba', 'active': '12ba'}), KeepsRows(), batches=16),
        ('Host memory leaks', line_of(KeepsRows.batch_end, 'self.rows').replace('batch_end', '<listcomp>')),
        'Stop keeping what on_host.py',
    ),
}

HEALTHY: dict[str, Callable[[], None]] = {
    'no leak on the host': of_host(),
    'a buffer on the host that fills up': in_own_process('on_host', 'fills_up()'),
    'an array that workers read': of_workers(RowsInArray),
    'a list of arrays that workers read': of_workers(Images),
    'workers that do not leak': of_data(lambda: Noise(100), num_workers=2),
}
