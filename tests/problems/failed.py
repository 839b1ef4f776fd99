"""Runs that end with an exception."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import Any

import torch
from composer.core import Callback, State
from composer.loggers import Logger
from torch.utils.data import DataLoader

from composer_memprof import StepTimes
from tests.conftest import Noise, train
from tests.problems.problem import Problem, line_of


class WithoutLabel(Noise):
    """A sample has no label, which a worker finds out."""

    def __getitem__(self, index: int) -> Any:
        labels = dict.fromkeys(range(60), 0)
        return super().__getitem__(index)[0], labels[index]


def _fails(run: Callable[[], Any], error: type[BaseException]) -> Callable[[], None]:
    def until_it_fails() -> None:
        with contextlib.suppress(error):
            run()

    return until_it_fails


def _loads() -> None:
    train(StepTimes(), train_dataloader=DataLoader(WithoutLabel(160), batch_size=8, num_workers=1), batches=20)


class OfTwoSizes(Noise):
    """One sample is longer."""

    def __getitem__(self, index: int) -> Any:
        given, target = super().__getitem__(index)
        return (torch.cat([given, given]) if index == 60 else given), target


class Stops(Callback):
    """A scheduler stops the run."""

    def batch_end(self, state: State, logger: Logger) -> None:
        if state.timestamp.batch.value == 6:
            raise SystemExit(128 + signal.SIGTERM)


PROBLEMS: dict[str, Problem] = {
    'an exception in a worker': Problem(
        _fails(_loads, KeyError),
        (
            'Rank 0 failed in batch 7: KeyError: 60, in DataLoader worker process 0',
            line_of(WithoutLabel.__getitem__, 'labels[index]').replace(' ', ' in '),
        ),
        'rank 0 failed there with KeyError',
    ),
    'samples of two sizes': Problem(
        _fails(lambda: train(StepTimes(), train_dataloader=DataLoader(OfTwoSizes(160), batch_size=8)), RuntimeError),
        ('Rank 0 failed in batch 7', 'stack expects each tensor to be equal size'),
        'collate_fn that pads',
    ),
    'a scheduler that stops the run': Problem(
        _fails(lambda: train(StepTimes(), Stops(), batches=20), SystemExit),
        ('Rank 0 was stopped in batch 6: SIGTERM',),
        'autoresume=True',
    ),
}
