"""Memory of a GPU that runs out in a loop without a Trainer. Each problem is trained on a simulated GPU of 14.7 GiB."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from composer_memprof import MemorySnapshot, profile
from tests.problems.on_gpu import GIB, GPT, apart
from tests.problems.problem import Problem, line_of


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


def _trains(
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


def _evaluates(model: GPT, loss: torch.Tensor) -> None:
    """Nothing marks it as an evaluation, and nothing switches gradients off."""
    model.eval()
    with torch.autocast('cuda', torch.float16):
        rows = _tokens(64)
        model.loss(model(rows), rows).item()
    model.train()


RUNS: dict[str, Callable[[], None]] = {
    'a backbone that nobody froze': lambda: _trains(
        lambda: WithAdapter().to(torch.bfloat16), of=lambda model: model.adapter, size=2, length=512, autocast=False
    ),
    'an evaluation with gradients that nothing marks': lambda: _trains(lambda: GPT(layers=24), _evaluates),
    'autocast in a loop': lambda: _trains(lambda: GPT(layers=24), size=64),
    'healthy autocast in a loop': lambda: _trains(GPT),
}
PROBLEMS: dict[str, Problem] = {
    name: Problem(apart(name, 'on_gpu_in_loop'), ('Memory ran out', *says), change, size)
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
        ('autocast in a loop', ('the activations of blocks.*', line_of(GPT.forward, 'block(x)')), 'Checkpoint', 0),
    )
}
HEALTHY: dict[str, Callable[[], None]] = {
    'healthy autocast in a loop': apart('healthy autocast in a loop', 'on_gpu_in_loop')
}
