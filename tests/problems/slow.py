"""What takes the time of a step beside training's own work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from composer.callbacks import CheckpointSaver
from composer.core import Callback, State
from composer.loggers import Logger
from torch.utils.data import DataLoader
from torchmetrics import MeanSquaredError, Metric

from composer_memprof import MemorySnapshot, StepTimes
from tests.conftest import Noise, Regression, loader, train
from tests.problems.problem import Problem, line_of


class SlowNoise(Noise):
    def __init__(self, samples: int, seconds: float) -> None:
        super().__init__(samples)
        self.seconds = seconds

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.seconds)
        return super().__getitem__(index)


class OpensFiles(Noise):
    """Each worker takes its time before its first sample."""

    is_open = False

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_open:
            time.sleep(0.4)
            self.is_open = True
        return super().__getitem__(index)


def slow_collate(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    time.sleep(0.05)
    return [torch.stack(each) for each in zip(*samples)]


class SlowLogger(Callback):
    """Works for 40 ms after each batch."""

    def batch_end(self, state: State, logger: Logger) -> None:
        end = time.perf_counter() + 0.04
        while time.perf_counter() < end:
            sum(range(1000))


class SlowGradients(Callback):
    """Works after backward, within the phases of training."""

    def after_backward(self, state: State, logger: Logger) -> None:
        time.sleep(0.06)


class SlowLoss(Regression):
    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        time.sleep(0.1)
        return super().loss(outputs, batch)


class LossRunsModel(Regression):
    """Healthy: the model's work is in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.second = SlowForward()

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return super().loss(outputs, batch) + 0 * self.second(batch).sum()


class SlowMetric(MeanSquaredError):
    def update(self, preds: torch.Tensor, target: torch.Tensor) -> None:
        time.sleep(0.06)
        super().update(preds, target)


class WithSlowMetric(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.metric = SlowMetric()

    def get_metrics(self, is_train: bool = False) -> dict[str, Metric]:
        return {'error': self.metric}

    def update_metric(self, batch: Any, outputs: torch.Tensor, metric: Metric) -> None:
        metric.update(outputs, batch[1])


class SlowOptimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        time.sleep(0.06)
        return loss


class SlowEvaluation(Regression):
    def eval_forward(self, batch: Any, outputs: Any = None) -> torch.Tensor:
        time.sleep(0.03)
        return super().eval_forward(batch)


class Garbage(Regression):
    """Makes so many containers that Python collects garbage again and again, over very many objects."""

    def __init__(self) -> None:
        super().__init__()
        self.table = [{'row': row} for row in range(400_000)]

    def forward(self, batch: Any) -> torch.Tensor:
        self.first = [[row] for row in range(30_000)]
        self.second = [[row] for row in range(30_000)]
        return super().forward(batch)


class Recompiles(Regression):
    """Gives a compiled function a new shape in each batch."""

    def __init__(self) -> None:
        super().__init__()
        torch._dynamo.config.cache_size_limit = 64
        self.rows = 0
        self.scale = torch.compile(self._scale, backend='eager', dynamic=False)

    def _scale(self, given: torch.Tensor) -> torch.Tensor:
        return (2 * given).sum()

    def forward(self, batch: Any) -> torch.Tensor:
        self.rows += 1
        return super().forward(batch) + 0 * self.scale(torch.ones(self.rows, 4))


class SearchesHistory(Regression):
    """Looks through all that it has seen, in each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def forward(self, batch: Any) -> torch.Tensor:
        self.batches += 1
        time.sleep(0.005 * self.batches)
        return super().forward(batch)


class SlowForward(Regression):
    """Healthy: a forward that takes its time."""

    def __init__(self, seconds: float = 0.02) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, batch: Any) -> torch.Tensor:
        time.sleep(self.seconds)
        return super().forward(batch)


def of_loader(data: Callable[[], Noise], **more: Any) -> Callable[[], None]:
    settings = {name: more.pop(name) for name in ('max_duration', 'model') if name in more}
    return lambda: _train(
        train_dataloader=DataLoader(data(), batch_size=8, **more),
        **{name: value() if callable(value) else value for name, value in settings.items()},
    )


def of_times(*callbacks: Callable[[], Callback], model: Callable[[], Any] = Regression, **more: Any) -> Any:
    def run() -> None:
        settings = {name: value() if callable(value) else value for name, value in more.items()}
        _train(*(make() for make in callbacks), model=model(), **settings)

    return run


def _with_callback_before() -> None:
    """It comes before StepTimes, whose phase has not ended then."""
    train(SlowGradients(), StepTimes(), max_duration='20ba')


def _with_slow_optimizer() -> None:
    model = Regression()
    _train(model=model, optimizers=SlowOptimizer(model.parameters(), lr=0.01))


def _train(*callbacks: Callback, **more: Any) -> None:
    train(StepTimes(), MemorySnapshot(), *callbacks, **{'max_duration': '20ba', **more})


def saver(interval: str) -> Callable[[], Callback]:
    return lambda: CheckpointSaver(folder='checkpoints', save_interval=interval)


PROBLEMS: dict[str, Problem] = {
    'a slow data set, no workers': Problem(
        of_loader(lambda: SlowNoise(160, 0.005)),
        ('waits for data', line_of(SlowNoise.__getitem__, 'sleep')),
        'workers, such as num_workers',
    ),
    'a slow data set, two workers': Problem(
        of_loader(lambda: SlowNoise(160, 0.02), num_workers=2), ('waits for data',), 'num_workers (2)'
    ),
    'a slow collate function': Problem(
        of_loader(lambda: Noise(160), collate_fn=slow_collate),
        ('waits for data', line_of(slow_collate, 'sleep')),
        'workers, such as num_workers',
    ),
    'a slow callback': Problem(
        of_times(SlowLogger), ('between the phases', '.py:', 'batch_end'), 'Do less in callbacks'
    ),
    'a slow callback after backward': Problem(
        _with_callback_before,
        ('Callbacks take', line_of(SlowGradients.after_backward, 'sleep')),
        'Do less in callbacks',
    ),
    'a slow loss': Problem(
        of_times(model=SlowLoss), ('The loss takes', line_of(SlowLoss.loss, 'sleep')), 'operations on whole tensors'
    ),
    'a slow metric of the training': Problem(
        of_times(model=WithSlowMetric),
        ('between the phases', line_of(SlowMetric.update, 'sleep')),
        'metrics',
    ),
    'a slow optimizer of the user': Problem(
        _with_slow_optimizer,
        ("optimizer's own Python code", line_of(SlowOptimizer.step, 'sleep')),
        'Update whole parameters',
    ),
    'evaluation that is too often': Problem(
        of_times(model=SlowEvaluation, eval_dataloader=lambda: loader(4), eval_interval='2ba'),
        ('Evaluation takes', line_of(SlowEvaluation.eval_forward, 'sleep')),
        'Evaluate less often',
    ),
    'checkpoints that are too often': Problem(
        of_times(saver('1ba')), ('Saving checkpoints takes',), 'Save checkpoints less often'
    ),
    'garbage collections': Problem(of_times(model=Garbage), ("Python's garbage collector takes",), 'gc.freeze()'),
    'a function that compiles again': Problem(
        of_times(model=Recompiles), ('torch.compile takes', '_scale', 'size mismatch'), 'dynamic=True'
    ),
}

PROBLEMS['workers that start in each epoch'] = Problem(
    of_loader(lambda: Noise(16), num_workers=4, max_duration='12ep'),
    ("Starting the DataLoader's workers",),
    'persistent_workers=True',
)
PROBLEMS['workers that take long to start in each epoch'] = Problem(
    of_loader(lambda: OpensFiles(80), num_workers=2, max_duration='3ep'),
    ("Starting the DataLoader's workers again in each epoch", 'the first batch of each epoch waits'),
    'persistent_workers=True',
)
PROBLEMS['batches that take longer and longer'] = Problem(
    of_times(model=SearchesHistory, max_duration='48ba', train_dataloader=lambda: loader(48)),
    ('Batches take longer and longer', 'forward grows', line_of(SearchesHistory.forward, 'sleep')),
    'work that grows with each batch',
)

HEALTHY: dict[str, Callable[[], None]] = {
    'workers that stay': of_loader(
        lambda: Noise(120), num_workers=2, persistent_workers=True, max_duration='3ep', model=lambda: SlowForward(0.2)
    ),
    'workers that take long to start once': of_loader(
        lambda: OpensFiles(80),
        num_workers=2,
        persistent_workers=True,
        max_duration='3ep',
        model=lambda: SlowForward(0.05),
    ),
    'fast data': of_loader(lambda: Noise(160)),
    'a slow forward': of_times(model=SlowForward),
    'a loss that runs the model': of_times(model=LossRunsModel),
    'a checkpoint at the end': of_times(saver('10ba'), model=SlowForward),
    'evaluation now and then': of_times(model=SlowForward, eval_dataloader=lambda: loader(2), eval_interval='10ba'),
}
