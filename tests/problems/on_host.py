"""Memory of the host that is kept from batch to batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from composer.core import Callback, State
from composer.loggers import Logger
from torch.utils.data import DataLoader

from composer_memprof import HostRSS, Memray
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


class Rows(Callback):
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
    'a callback that keeps rows of text': Problem(of_host(Rows), *grows('between batches', 'Rows.rows')),
    'a forward that leaks in each 25th batch': Problem(
        in_own_process('on_host', 'leaks_rarely()'), *grows('forward', 'LeaksRarely.kept'), int(0.64 * MIB)
    ),
    'rows of text in a recording of memray': Problem(
        lambda: train(Memray(schedule={'skip': '2ba', 'active': '12ba'}), Rows(), batches=16),
        ('Host memory leaks', line_of(Rows.batch_end, 'self.rows').replace('batch_end', '<listcomp>')),
        'Stop keeping what on_host.py',
    ),
}

HEALTHY: dict[str, Callable[[], None]] = {
    'no leak on the host': of_host(),
    'a buffer on the host that fills up': in_own_process('on_host', 'fills_up()'),
    'workers that do not leak': of_data(lambda: Noise(100), num_workers=2),
}
