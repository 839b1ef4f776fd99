"""The cost of Flops: a timed step against a bare one, and the traced step against torch's own counter."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from composer_memprof import Flops
from composer_memprof.examples.byte_gpt import ByteGPT
from composer_memprof.recorders.flops.recorder import FlopsRecorder
from tests.benchmarks.callbacks.training import step_ratio
from tests.benchmarks.figures import Report


def flops(rounds: int, report: Report) -> None:
    """Train a small GPT in a Trainer, alternately with and without Flops; then trace a step."""
    report('Flops outside of the traced batch against none, a step', step_ratio(rounds, Flops), 1.02)
    _trace(rounds, report)


def _trace(rounds: int, report: Report) -> None:
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
