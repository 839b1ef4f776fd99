"""The cost of FSDPMemTracker's recorder: a step against torch's own tracker, and a step after its window."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed._tools.mem_tracker import MemTracker

from composer_memprof.examples.byte_gpt import ByteGPT
from composer_memprof.recorders.modules.recorder import ModuleMemoryRecorder

#: A step under torch's own tracker against a bare one, as measured for this project.
GOAL = 5.7


def _step(model: ByteGPT, batch: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model.loss(model(batch), batch).backward()
    optimizer.step()


def _seconds(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def fsdp_mem_tracker(rounds: int) -> None:
    torch.manual_seed(0)
    model = ByteGPT(d_model=96, n_layers=8, max_seq_len=64)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 256, (4, 64))
    batch = {'input_ids': ids, 'labels': ids}
    taken: dict[str, list[float]] = {'bare': [], 'theirs': [], 'ours': [], 'after': []}

    def step() -> None:
        _step(model, batch, optimizer)

    step()
    for _ in range(rounds * 3):
        taken['bare'].append(_seconds(step))
        theirs = MemTracker()
        theirs.track_external(model, optimizer)
        with theirs:
            taken['theirs'].append(_seconds(step))
        with ModuleMemoryRecorder(model, [optimizer], depth=2):
            taken['ours'].append(_seconds(step))
        step()
        taken['after'].append(_seconds(step))
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    print(f'  a step of an 8-block transformer, bare: {medians["bare"] * 1e3:.1f} ms')
    for what, name, against, goal in (
        ("torch's MemTracker by hand against none, a step", 'theirs', 'bare', GOAL),
        ('FSDPMemTracker recording against none, a step', 'ours', 'bare', GOAL),
        ("FSDPMemTracker recording against torch's MemTracker, a step", 'ours', 'theirs', 1.0),
        ('after the window against before it, a step', 'after', 'bare', 1.0),
    ):
        ratio = medians[name] / medians[against]
        print(f'{what}: {ratio:.3f} (goal {goal:g})', flush=True)
