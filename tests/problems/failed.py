"""Runs that end with an exception."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from composer_memprof import StepTimes
from tests.conftest import Noise, train
from tests.problems.problem import Problem, line_of


class WithoutLabel(Noise):
    """A sample has no label, which a worker finds out."""

    def __getitem__(self, index: int) -> Any:
        labels = dict.fromkeys(range(60), 0)
        return super().__getitem__(index)[0], labels[index]


def _fails(run: Callable[[], None], error: type[Exception]) -> Callable[[], None]:
    def until_it_fails() -> None:
        with contextlib.suppress(error):
            run()

    return until_it_fails


def _loads() -> None:
    train(StepTimes(), train_dataloader=DataLoader(WithoutLabel(160), batch_size=8, num_workers=1), batches=20)


PROBLEMS: dict[str, Problem] = {
    'an exception in a worker': Problem(
        _fails(_loads, KeyError),
        (
            'Rank 0 failed in batch 7: KeyError: 60, in DataLoader worker process 0',
            line_of(WithoutLabel.__getitem__, 'labels[index]').replace(' ', ' in '),
        ),
        'rank 0 failed there with KeyError',
    ),
}
