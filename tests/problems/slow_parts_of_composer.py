"""What takes the time of a step in parts that Composer calls: samplers, algorithms, microbatches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from composer.core import Algorithm, Event, State
from composer.loggers import Logger
from torch.utils.data import DataLoader, Sampler

from composer_memprof import StepTimes
from tests.conftest import Noise, loader, train
from tests.problems.problem import Problem, in_own_process, line_of


class SlowSampler(Sampler):
    """Looks for each index anew."""

    def __iter__(self) -> Iterator[int]:
        for index in range(len(self)):
            time.sleep(0.004)
            yield index

    def __len__(self) -> int:
        return 160


class SlowAlgorithm(Algorithm):
    """Changes each batch, slowly."""

    def __init__(self, event: Event) -> None:
        self.event = event

    def match(self, event: Event, state: State) -> bool:
        return event == self.event

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        time.sleep(0.06)


def _with_sampler(workers: int) -> None:
    data = DataLoader(Noise(160), batch_size=8, sampler=SlowSampler(), num_workers=workers)
    train(StepTimes(), train_dataloader=data)


def _with_algorithm(event: Event) -> Callable[[], None]:
    return lambda: train(StepTimes(), algorithms=[SlowAlgorithm(event)], batches=20)


def trains_in_microbatches(size: int) -> None:
    """So many batches that the typical one is right where other processes take the processor from some."""
    train(StepTimes(), train_dataloader=loader(30, batch_size=32), device_train_microbatch_size=size)


def _in_microbatches(size: int) -> Callable[[], None]:
    return in_own_process('slow_parts_of_composer', f'trains_in_microbatches({size})')


_SAMPLER = ('waits for data', 'in the sampler', line_of(SlowSampler.__iter__, 'sleep'))
_ALGORITHM = ('Algorithms take', line_of(SlowAlgorithm.apply, 'sleep'))
PROBLEMS: dict[str, Problem] = {
    'a slow sampler': Problem(lambda: _with_sampler(0), _SAMPLER, 'Let the sampler draw'),
    'a slow sampler beside workers': Problem(lambda: _with_sampler(1), _SAMPLER, 'Let the sampler draw'),
    'a slow algorithm on each batch': Problem(
        _with_algorithm(Event.AFTER_DATALOADER), _ALGORITHM, 'Do less in the algorithm'
    ),
    'a slow algorithm after backward': Problem(
        _with_algorithm(Event.AFTER_BACKWARD), _ALGORITHM, 'Do less in the algorithm'
    ),
    'microbatches of one sample': Problem(
        _in_microbatches(1), ('Microbatches are too small', '32 of 1 sample'), 'Raise device_train_microbatch_size'
    ),
}
HEALTHY: dict[str, Callable[[], None]] = {'microbatches that are large enough': _in_microbatches(8)}
