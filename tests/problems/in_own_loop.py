"""Problems of loops without Composer's Trainer, recorded with ``profile``; some on a simulated GPU of 14.7 GiB."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from composer_memprof import MemorySnapshot, StepTimes, profile
from tests.problems.gpu.on_gpu import GIB, GPT, apart
from tests.problems.problem import Problem, line_of

_ROWS = 256


class Net(nn.Module):
    """Activations of 1 MiB a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 1024), nn.Linear(1024, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def _trains(*callbacks: Any, with_loss: Callable[[torch.Tensor], None], batches: int = 8) -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    with profile(*callbacks, run_name='test-run', model=model, optimizers=[optimizer]) as run:
        for _ in range(batches):
            loss = F.mse_loss(model(torch.randn(_ROWS, 64)), torch.randn(_ROWS, 1))
            loss.backward(retain_graph=True)
            optimizer.step()
            optimizer.zero_grad()
            with_loss(loss)
            run.step(samples=_ROWS)


def _sums_losses() -> None:
    total = torch.zeros(())

    def add(loss: torch.Tensor) -> None:
        nonlocal total
        total = total + loss

    _trains(MemorySnapshot(), with_loss=add)
    del total
    gc.collect()


def _keeps_losses() -> None:
    losses: list[torch.Tensor] = []
    _trains(MemorySnapshot(), with_loss=losses.append)


class SlowRows(Dataset):
    def __len__(self) -> int:
        return 16 * 8

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.004)
        return torch.randn(64)


def _save(model: Net) -> None:
    time.sleep(0.1)
    torch.save(model.state_dict(), 'model.pt')


def _steps(batches: Iterable[torch.Tensor], after: Callable[[Net], Any] = lambda model: None) -> None:
    """Nothing says where data are loaded, and what else the loop does."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with profile(StepTimes(), run_name='test-run', model=model, optimizers=[optimizer]) as run:
        for rows in batches:
            model(rows).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            after(model)
            run.step(samples=len(rows))


def _trains_two_models() -> None:
    """Healthy: the phases follow the first model alone."""
    judge = nn.Sequential(*[nn.Linear(64, 64) for _ in range(100)])
    rows = torch.randn(_ROWS, 64)
    _steps([rows] * 20, lambda model: judge(rows).square().mean().backward())


class WithAdapter(GPT):
    """Only the adapter is trained, but nobody froze the rest."""

    def __init__(self) -> None:
        super().__init__(4096, 16, 10_000)
        self.adapter = nn.Linear(4096, 8)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        x = self.embedding(batch)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(x + self.adapter(x).mean(-1, keepdim=True))


def _tokens(size: int, length: int = 1024) -> torch.Tensor:
    return torch.zeros(size, length, dtype=torch.long, device='cuda')


def _trains_on_gpu(
    model: Callable[[], GPT],
    after: Callable[[GPT, torch.Tensor], Any] = lambda model, loss: None,
    of: Callable[[GPT], nn.Module] = lambda model: model,
    size: int = 8,
    length: int = 1024,
    batches: int = 6,
    autocast: bool = True,
) -> None:
    with torch.device('cuda'):
        built = model()
    optimizer = torch.optim.AdamW(of(built).parameters())
    recording = profile(MemorySnapshot(on_oom=True), run_name='test-run', model=built, optimizers=[optimizer])
    with contextlib.suppress(torch.OutOfMemoryError), recording as run:
        for _ in range(batches):
            rows = _tokens(size, length)
            with torch.autocast('cuda', torch.float16, enabled=autocast):
                loss = built.loss(built(rows), rows)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step(samples=size)
            after(built, loss)


def _evaluates_unmarked(model: GPT, loss: torch.Tensor) -> None:
    """Nothing marks it as an evaluation, and nothing switches gradients off."""
    model.eval()
    with torch.autocast('cuda', torch.float16):
        rows = _tokens(64)
        model.loss(model(rows), rows).item()
    model.train()


def _evaluates_in_training_mode(model: GPT, loss: torch.Tensor) -> None:
    """Nothing marks it at all: the model stays in training mode."""
    with torch.autocast('cuda', torch.float16):
        rows = _tokens(64)
        model(rows).argmax(-1)


RUNS: dict[str, Callable[[], None]] = {
    'a backbone that nobody froze': lambda: _trains_on_gpu(
        lambda: WithAdapter().to(torch.bfloat16), of=lambda model: model.adapter, size=2, length=512, autocast=False
    ),
    'an evaluation with gradients that nothing marks': lambda: _trains_on_gpu(
        lambda: GPT(layers=24), _evaluates_unmarked
    ),
    'an evaluation in training mode': lambda: _trains_on_gpu(lambda: GPT(layers=24), _evaluates_in_training_mode),
    'autocast in a loop': lambda: _trains_on_gpu(lambda: GPT(layers=24), size=64),
    'healthy autocast in a loop': lambda: _trains_on_gpu(GPT),
}
_ON_GPU: dict[str, Problem] = {
    name: Problem(apart(name, 'in_own_loop'), ('Memory ran out', *says), change, size)
    for name, says, change, size in (
        (
            'a backbone that nobody froze',
            ("the model's own state", 'gradients of blocks.*', 'which no optimizer uses'),
            'Freeze blocks.*',
            6.2 * GIB,
        ),
        (
            'an evaluation with gradients that nothing marks',
            ('in evaluation, which records a graph for backward',),
            'torch.no_grad()',
            0,
        ),
        (
            'an evaluation in training mode',
            ('in evaluation, which records a graph for backward',),
            'torch.no_grad()',
            0,
        ),
        ('autocast in a loop', ('the activations of blocks.*', line_of(GPT.forward, 'block(x)')), 'Checkpoint', 0),
    )
}

#: The hidden layer, the inputs and the targets.
_KEPT = 4 * _ROWS * (1024 + 64 + 1)

PROBLEMS: dict[str, Problem] = {
    **_ON_GPU,
    'a sum of losses': Problem(
        _sums_losses,
        ('leak', line_of(Net.forward, 'relu'), 'total', 'with its graph'),
        'Stop keeping',
        _KEPT,
    ),
    'a list of losses': Problem(
        _keeps_losses,
        ('leak', line_of(Net.forward, 'relu'), 'losses of _keeps_losses, a list of', 'with its graph'),
        'Stop keeping',
        _KEPT,
    ),
    'a slow data set in a loop': Problem(
        lambda: _steps(DataLoader(SlowRows(), batch_size=8)),
        ('waits for data', line_of(SlowRows.__getitem__, 'sleep')),
        'Load data in processes of their own',
    ),
    'a slow function in a loop': Problem(
        lambda: _steps([torch.randn(8, 64)] * 12, _save),
        ("The loop's own code", line_of(_save, 'sleep')),
        'Do less in the loop',
    ),
}
HEALTHY: dict[str, Callable[[], None]] = {
    'a loop of two models': _trains_two_models,
    'healthy autocast in a loop': apart('healthy autocast in a loop', 'in_own_loop'),
}
