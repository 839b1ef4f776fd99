"""What a callback costs a training step of a small GPT in a Trainer, against none."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from composer import Trainer
from composer.core import Callback

from composer_memprof.examples.byte_gpt import ByteGPT
from composer_memprof.examples.text_files import text_files

_CHUNK = 20


class StepSeconds(Callback):
    """Seconds from each batch's end to the next one's, with all that callbacks do between them."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._since = 0.0

    def batch_end(self, state: Any, logger: Any) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._since)
        self._since = now


def step_ratio(rounds: int, make: Callable[[], Callback]) -> float:
    """The time of a step with the callback against one without, in turn."""
    steps = {name: StepSeconds() for name in ('bare', 'ours')}
    trainers = {'bare': _trainer([steps['bare']]), 'ours': _trainer([steps['ours'], make()])}
    taken: dict[str, list[float]] = {name: [] for name in trainers}
    for number in range(rounds * 3 + 1):
        for name in sorted(trainers, reverse=number % 2 == 1):
            trainers[name].fit(duration=f'{_CHUNK}ba')
            if number:  # the first is the warm-up; the first steps of each have the start of the fit
                taken[name].append(statistics.median(steps[name].seconds[-_CHUNK + 2 :]))
    for trainer in trainers.values():
        trainer.close()
    print(f'  a bare step: {statistics.median(taken["bare"]) * 1e3:.1f} ms, {len(taken["bare"])} x {_CHUNK} steps each')
    return statistics.median(ours / bare for ours, bare in zip(taken['ours'], taken['bare']))


def gpt_trainer(
    callbacks: list[Callback],
    model: ByteGPT,
    optimizer: torch.optim.Optimizer,
    *,
    batch_size: int,
    max_duration: str,
) -> Trainer:
    """Trains a small GPT on 64 bytes of Python's own sources at a time, on the CPU."""
    return Trainer(
        model=model,
        train_dataloader=text_files('{stdlib}/*.py', batch_size=batch_size, seq_len=64, max_bytes=1_000_000),
        optimizers=optimizer,
        max_duration=max_duration,
        callbacks=callbacks,
        run_name='bench',
        device='cpu',
        seed=1,
        progress_bar=False,
    )


def _trainer(callbacks: list[Callback]) -> Trainer:
    torch.manual_seed(0)
    model = ByteGPT(d_model=96, n_layers=3, max_seq_len=64)
    return gpt_trainer(callbacks, model, torch.optim.SGD(model.parameters(), lr=1e-4), batch_size=8, max_duration='1ba')
