"""The cost of Flops: a timed step against a bare one, and the traced step against torch's own counter."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from composer import Trainer
from composer.core import Callback
from torch.utils.flop_counter import FlopCounterMode

from composer_memprof import Flops
from composer_memprof.examples.byte_gpt import ByteGPT
from composer_memprof.examples.text_files import text_files
from composer_memprof.recorders.flops.recorder import FlopsRecorder


class _Steps(Callback):
    """Seconds from each batch's end to the next one's, callbacks included."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._since = 0.0

    def batch_end(self, state: Any, logger: Any) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._since)
        self._since = now


def flops(rounds: int, report: Callable[[str, float, float], None]) -> None:
    """Train a small GPT in a Trainer, alternately with and without Flops."""
    chunk = 20
    steps = {name: _Steps() for name in ('bare', 'ours')}
    trainers = {'bare': _trainer([steps['bare']]), 'ours': _trainer([steps['ours'], Flops()])}
    taken: dict[str, list[float]] = {name: [] for name in trainers}
    for number in range(rounds * 3 + 1):
        for name in sorted(trainers, reverse=number % 2 == 1):
            trainers[name].fit(duration=f'{chunk}ba')
            if number:  # the first round has the trace; the first step of each has the start of fit
                taken[name].append(statistics.median(steps[name].seconds[-chunk + 2 :]))
    for trainer in trainers.values():
        trainer.close()
    ratio = statistics.median(ours / bare for ours, bare in zip(taken['ours'], taken['bare']))
    print(f'  a bare step: {statistics.median(taken["bare"]) * 1e3:.1f} ms, {len(taken["bare"])} x {chunk} steps each')
    report('Flops outside of the traced batch against none, a step', ratio, 1.02)
    _trace(rounds, report)


def _trace(rounds: int, report: Callable[[str, float, float], None]) -> None:
    """Forward and backward under the recorder, against torch's own counter."""
    torch.manual_seed(0)
    model = ByteGPT(d_model=192, n_layers=8, max_seq_len=128)
    ids = torch.randint(0, 256, (8, 129))
    batch = {'input_ids': ids[:, :-1], 'labels': ids[:, 1:]}
    make: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        'bare': nullcontext,
        'theirs': lambda: FlopCounterMode(display=False),
        'ours': lambda: FlopsRecorder(model),
    }
    taken: dict[str, list[float]] = {name: [] for name in make}
    for number in range(rounds * 3 + 1):
        for name in sorted(make, reverse=number % 2 == 1):
            begin = time.perf_counter()
            with make[name]():
                model.loss(model(batch), batch).backward()
            model.zero_grad()
            if number:
                taken[name].append(time.perf_counter() - begin)
    ratio = {name: statistics.median(x / bare for x, bare in zip(taken[name], taken['bare'])) for name in make}
    print(f"  a step under torch's FlopCounterMode against bare: {ratio['theirs']:.3f}")
    report('Flops in the traced batch against bare, a step', ratio['ours'], ratio['theirs'])


def _trainer(callbacks: list[Callback]) -> Trainer:
    torch.manual_seed(0)
    model = ByteGPT(d_model=96, n_layers=3, max_seq_len=64)
    return Trainer(
        model=model,
        train_dataloader=text_files('{stdlib}/*.py', batch_size=8, seq_len=64, max_bytes=1_000_000),
        optimizers=torch.optim.SGD(model.parameters(), lr=1e-4),
        max_duration='1ba',
        callbacks=callbacks,
        run_name='bench-flops',
        device='cpu',
        seed=1,
        progress_bar=False,
    )
