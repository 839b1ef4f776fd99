"""Memory of a GPU that parts beside the training take: teachers, copies. Each is trained on a simulated GPU of 14.7 GiB."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from composer.core import Callback, State
from composer.loggers import Logger
from torch import nn

from tests.problems.gpu.on_gpu import GPT, apart, trains
from tests.problems.problem import Problem, line_of


class Distils(GPT):
    """Learns from a teacher, whose forward records a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = GPT(layers=100)

    def forward(self, batch: torch.Tensor) -> Any:
        return super().forward(batch), self.teacher(batch).detach()

    def loss(self, outputs: Any, batch: torch.Tensor) -> torch.Tensor:
        return super().loss(outputs[0], batch) + F.mse_loss(*outputs)


class DistilsUnderNoGrad(Distils):
    """Healthy."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher.requires_grad_(False).eval()

    def forward(self, batch: torch.Tensor) -> Any:
        with torch.no_grad():
            taught = self.teacher(batch)
        return GPT.forward(self, batch), taught


class HidesTeacher(Distils):
    """Keeps the teacher out of its parameters, and calls it by another name."""

    def __init__(self) -> None:
        super().__init__()
        large = self.teacher
        del self.teacher
        object.__setattr__(self, 'guide', large)

    def forward(self, batch: torch.Tensor) -> Any:
        return GPT.forward(self, batch), self.guide(batch).detach()


class Averages(GPT):
    """Keeps a copy of itself within itself."""

    def __init__(self) -> None:
        super().__init__(4096, 4, 10_000)
        self.average = copy.deepcopy(self).requires_grad_(False)


class Unrolls(GPT):
    """A recurrent network in a Python loop."""

    def __init__(self) -> None:
        super().__init__(layers=1)
        self.cell = nn.LSTMCell(512, 2048)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        x = self.embedding(batch)
        hidden = memory = x.new_zeros(len(batch), 2048)
        for step in range(x.shape[1]):
            hidden, memory = self.cell(x[:, step], (hidden, memory))
        return self.lm_head(hidden[:, None, :512]).expand(-1, batch.shape[1], -1)


class KeepsSome(GPT):
    """Keeps 64 MiB of each fifth batch, which a window of three batches may not see."""

    def __init__(self) -> None:
        super().__init__(layers=1)
        self.batches = 0
        self.hard: list[torch.Tensor] = []

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.batches += 1
        if self.batches % 5 == 0:
            self.hard.append(torch.ones(1 << 24, device=batch.device))
        return super().forward(batch)


class EvaluatesItself(Callback):
    """A loop of its own over other data, in training mode and with gradients."""

    def batch_end(self, state: State, logger: Logger) -> None:
        rows = torch.zeros(64, 1024, dtype=torch.long, device='cuda')
        with torch.autocast('cuda', torch.float16):
            state.model(rows).argmax(-1)


def _with_checkpoint() -> None:
    loaded = {f'layer{number}': torch.zeros(1 << 28, device='cuda') for number in range(8)}
    trains(lambda: GPT(layers=60), length=2048)
    loaded.clear()


RUNS: dict[str, Callable[[], None]] = {
    'a teacher with a graph': lambda: trains(Distils, length=1024, size=16),
    'a hidden teacher with a graph': lambda: trains(HidesTeacher, length=1024, size=16),
    'a copy in the model': lambda: trains(Averages, length=16, size=1),
    'an unrolled loop': lambda: trains(Unrolls, length=400, size=512, batches=3),
    'a checkpoint on the GPU': _with_checkpoint,
    'an evaluation of a callback': lambda: trains(lambda: GPT(layers=24), callbacks=[EvaluatesItself()]),
    'a tensor of each fifth batch': lambda: trains(KeepsSome, length=16, batches=40),
    'a GPU that is half full': lambda: trains(lambda: GPT(layers=16), length=1024, size=16, batches=4),
    'a teacher without a graph': lambda: trains(DistilsUnderNoGrad, size=4),
}


PROBLEMS: dict[str, Problem] = {
    name: Problem(apart(name, 'parts'), ('Memory ran out', *says), change)
    for name, says, change in (
        (
            'a teacher with a graph',
            ('teacher, which is not trained', line_of(Distils.forward, 'self.teacher')),
            'Run teacher under torch.no_grad()',
        ),
        (
            'a hidden teacher with a graph',
            ('guide, which is not trained', line_of(HidesTeacher.forward, 'self.guide')),
            'Run guide under torch.no_grad()',
        ),
        ('a copy in the model', ("the model's own state", 'a copy of the model, average'), 'Keep the copy average'),
        (
            'an unrolled loop',
            ('the activations of a batch', line_of(Unrolls.forward, 'self.cell(')),
            'smaller device_train_microbatch_size',
        ),
        (
            'an evaluation of a callback',
            ('in evaluation, which records a graph for backward',),
            'torch.no_grad()',
        ),
        (
            'a checkpoint on the GPU',
            ('no part of the model', 'loaded'),
            'Keep the variable loaded',
        ),
    )
}
PROBLEMS['a tensor of each fifth batch'] = Problem(
    apart('a tensor of each fifth batch', 'parts'),
    ('Memory leaks between the windows', 'KeepsSome.hard, a list of'),
    'Stop keeping what batches put into KeepsSome.hard',
    (64 << 20) // 5,
)
HEALTHY: dict[str, Callable[[], None]] = {
    name: apart(name, 'parts') for name in ('a teacher without a graph', 'a GPU that is half full')
}
