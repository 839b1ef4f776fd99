"""The cost of a marked function without a profiler, and of MemProfiler's readings per training step."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from composer_memprof import MemProfiler, memprofilable
from composer_memprof.examples.byte_gpt import ByteGPT
from tests.benchmarks.figures import Report

CALLS = 200_000


def mem_profiler(rounds: int, report: Report) -> None:
    extra = statistics.median(_microseconds_of_a_mark() for _ in range(rounds * 3))
    report('a marked function with no profiler over the bare one, microseconds a call', extra, 0.3)
    torch.manual_seed(0)
    model = ByteGPT(d_model=192, n_layers=8, max_seq_len=128)
    ids = torch.randint(0, 256, (8, 129))
    batch = {'input_ids': ids[:, :-1], 'labels': ids[:, 1:]}

    def step() -> None:
        model.loss(model(batch), batch).backward()
        model.zero_grad()

    with tempfile.TemporaryDirectory() as folder:
        for name, settings in {
            'host memory alone': {'enable_memory_hooks': False, 'enable_saved_tensors_hooks': False},
            'all that is on by default': {},
        }.items():
            ratio = _ratio(step, model, {'save_dir': str(Path(folder) / name), **settings}, rounds)
            report(f'MemProfiler reading each batch, {name}, against bare, a step', ratio, 1.02)


def _microseconds_of_a_mark() -> float:
    def bare(x: int) -> int:
        return x

    marked = memprofilable(bare)
    taken = []
    for function in (bare, marked):
        begin = time.perf_counter()
        for number in range(CALLS):
            function(number)
        taken.append(time.perf_counter() - begin)
    return (taken[1] - taken[0]) / CALLS * 1e6


def _ratio(step: Callable[[], None], model: Any, settings: dict[str, Any], rounds: int) -> float:
    ratios = []
    with MemProfiler(warmup_iters=0, max_iter=10**9, **settings).connect(model) as profiler:
        for _ in range(rounds * 6 + 2):
            taken = []
            for number in range(2):
                begin = time.perf_counter()
                if number:
                    with profiler.memprofile_ctx('training_step'):
                        step()
                else:
                    step()
                taken.append(time.perf_counter() - begin)
            ratios.append(taken[1] / taken[0])
    return statistics.median(ratios[2:])
