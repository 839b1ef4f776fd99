"""Memory of the device that is kept from batch to batch."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import torch
from composer.core import Callback, State
from composer.loggers import Logger
from torchmetrics import CatMetric, MeanSquaredError

from composer_memprof import MemorySnapshot
from tests.conftest import Regression, loader, train
from tests.problems.problem import Problem, in_own_process, line_of
from tests.support.callbacks.host_memory import MIB


class Wide(Regression):
    """Activations of 1 MiB a batch of 128."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1))


class KeepsHidden(Regression):
    """Appends a tensor to a list in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, batch: Any) -> torch.Tensor:
        self.seen.append(torch.ones(MIB // 4))
        return super().forward(batch)


class KeepsRarely(KeepsHidden):
    """Appends a tensor in one of three batches."""

    every = 3
    batches = 0

    def forward(self, batch: Any) -> torch.Tensor:
        self.batches += 1
        if self.batches % self.every == 0:
            self.seen.append(torch.ones(self.every * MIB // 4))
        return Regression.forward(self, batch)


class KeepsFifth(KeepsRarely):
    """Appends a tensor in each fifth batch, of which a window of three may see none."""

    every = 5


class KeepsErrors(KeepsHidden):
    """Keeps exceptions: the traceback of each keeps the variables of its functions."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: list[ValueError] = []

    def forward(self, batch: Any) -> torch.Tensor:
        try:
            self._augment()
        except ValueError as error:
            self.failed.append(error)
        return Regression.forward(self, batch)

    def _augment(self) -> None:
        noise = torch.ones(MIB // 4)
        raise ValueError(f'{len(noise)} values are refused')


class KeepsInLoss(KeepsHidden):
    def forward(self, batch: Any) -> torch.Tensor:
        return Regression.forward(self, batch)

    def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
        self.seen.append(torch.zeros(2 * MIB // 4))
        return super().loss(outputs, batch)


class KeepsInCallback(Callback):
    """A logger that keeps a tensor of each batch."""

    def __init__(self) -> None:
        self.history: dict[str, list[torch.Tensor]] = {'norms': []}

    def after_loss(self, state: State, logger: Logger) -> None:
        self.history['norms'].append(torch.zeros(3 * MIB // 4))


class KeepsAtTheEnd(Callback):
    """Keeps a copy of the outputs, after the callbacks before it have seen the batch's end."""

    def __init__(self) -> None:
        self.outputs: list[torch.Tensor] = []

    def batch_end(self, state: State, logger: Logger) -> None:
        self.outputs.append(state.outputs.detach().repeat(1, MIB // 4 // len(state.outputs)))


class KeepsWeights(Callback):
    """Keeps a copy of the model after each batch."""

    def __init__(self) -> None:
        self.best: list[Any] = []

    def batch_end(self, state: State, logger: Logger) -> None:
        self.best.append(copy.deepcopy(state.model.state_dict()))


class KeepsModels(Callback):
    """Keeps a copy of the whole model, with its metrics, after each batch."""

    def __init__(self) -> None:
        self.copies: list[Any] = []

    def batch_end(self, state: State, logger: Logger) -> None:
        self.copies.append(copy.deepcopy(state.model))


class WithMetric(Wide):
    def __init__(self) -> None:
        super().__init__()
        self.metric = MeanSquaredError()


class AddsHooks(Callback):
    """Adds a hook in each batch, and removes none: each keeps its newest result."""

    def batch_start(self, state: State, logger: Logger) -> None:
        newest = {}

        def hook(module: Any, given: Any, result: torch.Tensor) -> None:
            newest['result'] = result.detach().repeat(1, MIB // 4 // result.numel())

        state.model.net.register_forward_hook(hook)


class KeepsGradients(Callback):
    norms: list[Any] = []

    def after_backward(self, state: State, logger: Logger) -> None:
        KeepsGradients.norms.append([parameter.grad.clone() for parameter in state.model.parameters()])


class KeepsInHooks(Regression):
    """Adds a hook in each forward, which holds a tensor in its closure."""

    def forward(self, batch: Any) -> torch.Tensor:
        scale = torch.ones(MIB // 4)
        self.net[0].register_forward_hook(lambda module, given, result: result * scale[0])
        return super().forward(batch)


class KeepsActivations(Wide):
    """A hook that collects what a layer returns."""

    def __init__(self) -> None:
        super().__init__()
        self.activations: list[torch.Tensor] = []
        self.net[1].register_forward_hook(self._collect)

    def _collect(self, module: Any, given: Any, result: torch.Tensor) -> None:
        self.activations.append(result.detach() + 1)


class KeepsGraphs(Wide):
    """A second loss that nobody calls backward of: it keeps its activations."""

    auxiliary: list[torch.Tensor] = []

    def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
        KeepsGraphs.auxiliary.append(self.net(2 * batch[0]).mean())
        return super().loss(outputs, batch)


class KeepsMasks(Regression):
    """A cache whose key is new each time."""

    masks: dict[int, torch.Tensor] = {}

    def forward(self, batch: Any) -> torch.Tensor:
        return super().forward(batch) * self._mask(len(self.masks))[0]

    def _mask(self, number: int) -> torch.Tensor:
        return self.masks.setdefault(number, torch.ones(MIB // 4))


class Concatenates(Regression):
    """Puts something into one tensor with each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.all = torch.ones(MIB // 4)

    def forward(self, batch: Any) -> torch.Tensor:
        self.all = torch.cat([self.all, torch.ones(MIB // 4)])
        return super().forward(batch)


class CarriesState(Wide):
    """A recurrent state that is never detached."""

    def __init__(self) -> None:
        super().__init__()
        self.step = torch.nn.Linear(32, 32)
        self.state = torch.zeros(2048, 32)

    def forward(self, batch: Any) -> torch.Tensor:
        self.state = torch.tanh(self.step(self.state))
        return super().forward(batch)


class KeepsInMetric(Regression):
    """A metric that concatenates, and is never reset."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = CatMetric()

    def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
        self.scores.update(torch.zeros(MIB // 4))
        return super().loss(outputs, batch)


class KeepsInCycles(Regression):
    """A cycle of references, which only the garbage collector would free."""

    def forward(self, batch: Any) -> torch.Tensor:
        node = Node(torch.ones(MIB // 4))
        return super().forward(batch) * node.values[0]


class Node:
    def __init__(self, values: torch.Tensor) -> None:
        self.values, self.parent = values, self


class KeepsPredictions(Regression):
    """Keeps what each evaluation predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.predictions: list[torch.Tensor] = []

    def eval_forward(self, batch: Any, outputs: Any = None) -> torch.Tensor:
        found = self(batch)
        self.predictions.append(found.repeat(1, MIB // 4 // len(found)))
        return found


def of_snapshot(model: Callable[[], torch.nn.Module], *callbacks: Callable[[], Callback], **more: Any) -> Any:
    def run() -> None:
        settings = {'batches': 8, **{name: value() if callable(value) else value for name, value in more.items()}}
        window = MemorySnapshot(schedule=settings.pop('schedule', None))
        train(window, *(make() for make in callbacks), model=model(), **settings)

    return run


def of_wide(model: Callable[[], torch.nn.Module]) -> Callable[[], None]:
    return of_snapshot(model, train_dataloader=lambda: loader(8, batch_size=128))


def without_collections() -> None:
    gc.disable()
    try:
        of_snapshot(KeepsInCycles)()
    finally:
        gc.enable()


def keeps_fifth() -> None:
    of_snapshot(KeepsFifth, batches=150)()


def leak(function: Callable[..., Any], text: str, keeper: str, size: int) -> tuple[tuple[str, ...], str, int]:
    return ('leak', line_of(function, text), keeper), 'Stop keeping', size


PROBLEMS: dict[str, Problem] = {
    'a list in forward': Problem(
        of_snapshot(KeepsHidden), *leak(KeepsHidden.forward, 'torch.ones', 'KeepsHidden.seen', MIB)
    ),
    'a list in every third batch': Problem(
        of_snapshot(KeepsRarely, schedule={'active': '14ba'}, batches=16),
        *leak(KeepsRarely.forward, 'torch.ones', 'KeepsRarely.seen', MIB),
    ),
    'a list in every fifth batch, between windows': Problem(
        in_own_process('kept', 'keeps_fifth()'),
        ('leaks between the windows', 'KeepsFifth.seen, a list of'),
        'Stop keeping what batches put into KeepsFifth.seen',
        MIB,
    ),
    'tracebacks': Problem(
        of_snapshot(KeepsErrors), *leak(KeepsErrors._augment, 'torch.ones', 'KeepsErrors.failed', MIB)
    ),
    'a list in the loss': Problem(
        of_snapshot(KeepsInLoss), *leak(KeepsInLoss.loss, 'torch.zeros', 'KeepsInLoss.seen', 2 * MIB)
    ),
    'a logger': Problem(
        of_snapshot(Regression, KeepsInCallback),
        *leak(KeepsInCallback.after_loss, 'torch.zeros', 'KeepsInCallback.history', 3 * MIB),
    ),
    'a callback at the end of batches': Problem(
        of_snapshot(Regression, KeepsAtTheEnd),
        *leak(KeepsAtTheEnd.batch_end, 'append', 'KeepsAtTheEnd.outputs', MIB),
    ),
    'copies of the weights': Problem(
        of_snapshot(Wide, KeepsWeights),
        *leak(KeepsWeights.batch_end, 'deepcopy', 'KeepsWeights.best', 4 * (16 * 2048 + 2048 + 2048 + 1)),
    ),
    'copies of the model': Problem(
        of_snapshot(WithMetric, KeepsModels),
        *leak(KeepsModels.batch_end, 'deepcopy', 'KeepsModels.copies', 4 * (16 * 2048 + 2048 + 2048 + 1)),
    ),
    'hooks that nobody removes': Problem(
        of_snapshot(Regression, AddsHooks), ('leak', 'kept.py', 'hook'), 'Stop keeping', MIB
    ),
    'gradients': Problem(
        of_snapshot(Wide, KeepsGradients),
        ('leak', 'kept.py', 'KeepsGradients.norms'),
        'Stop keeping',
        4 * (16 * 2048 + 2048 + 2048 + 1),
    ),
    'a closure in a hook': Problem(
        of_snapshot(KeepsInHooks), *leak(KeepsInHooks.forward, 'torch.ones', 'KeepsInHooks.forward.<locals>', MIB)
    ),
    'activations in a hook': Problem(
        of_wide(KeepsActivations),
        ('leak', 'kept.py', '_collect', 'KeepsActivations.activations'),
        'Stop keeping',
        MIB,
    ),
    'graphs of a loss': Problem(
        of_wide(KeepsGraphs), ('leak', 'kept.py', 'KeepsGraphs.auxiliary', 'with its graph'), 'Stop keeping', MIB
    ),
    'a cache': Problem(of_snapshot(KeepsMasks), *leak(KeepsMasks._mask, 'torch.ones', 'KeepsMasks.masks', MIB)),
    'a tensor that gets longer': Problem(
        of_snapshot(Concatenates), *leak(Concatenates.forward, 'torch.cat', 'Concatenates.all', MIB)
    ),
    'a recurrent state': Problem(
        of_snapshot(CarriesState), ('leak', 'kept.py', 'CarriesState.state', 'with its graph'), 'Stop keeping'
    ),
    'a metric': Problem(
        of_snapshot(KeepsInMetric), *leak(KeepsInMetric.loss, 'torch.zeros', 'KeepsInMetric.scores.value', MIB)
    ),
    'a reference cycle': Problem(
        without_collections,
        ('leak', line_of(KeepsInCycles.forward, 'torch.ones'), 'a reference cycle', 'Node.values'),
        'Break the reference cycle',
        MIB,
    ),
    'predictions of evaluations': Problem(
        of_snapshot(KeepsPredictions, eval_dataloader=lambda: loader(1), eval_interval='1ba'),
        *leak(KeepsPredictions.eval_forward, 'append', 'KeepsPredictions.predictions', MIB),
    ),
}
