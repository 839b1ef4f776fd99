"""What a window's child costs the training: a step while it lives, and the fork of a large process."""

from __future__ import annotations

import statistics
import time

import psutil
import torch
from composer import Trainer
from composer.core import Callback, State
from composer.loggers import Logger

from composer_memprof import MemorySnapshot
from composer_memprof.artifacts.writing.child.fork import fork
from composer_memprof.artifacts.writing.child.memory import exclude_from_children
from composer_memprof.examples.byte_gpt import ByteGPT
from composer_memprof.recorders.host_memory import host_memory
from tests.benchmarks.callbacks.training import gpt_trainer
from tests.benchmarks.figures import Report

_BEFORE, _WINDOW, _AFTER = 20, 20, 400
_GIB = 1 << 30


class _Steps(Callback):
    """Seconds of each step, before the window and while a child lives; training ends with the child."""

    def __init__(self) -> None:
        self.bare: list[float] = []
        self.beside: list[float] = []
        self._since = 0.0

    def batch_start(self, state: State, logger: Logger) -> None:
        done = state.timestamp.batch.value
        lives = done > _BEFORE + _WINDOW and bool(psutil.Process().children())
        if self.beside and not lives:
            state.stop_training()
        self._since = time.perf_counter()

    def batch_end(self, state: State, logger: Logger) -> None:
        seconds = time.perf_counter() - self._since
        done = state.timestamp.batch.value
        if 5 < done < _BEFORE:
            self.bare.append(seconds)
        elif done > _BEFORE + _WINDOW + 1:
            self.beside.append(seconds)


def child(rounds: int, report: Report) -> None:
    """A CPU's training, which uses every core and rewrites its weights and optimizer state, beside a snapshot's child."""
    medians, means, first = [], [], []
    for _ in range(rounds):
        steps = _Steps()
        trainer = _trainer([MemorySnapshot(schedule={'skip': f'{_BEFORE}ba', 'active': f'{_WINDOW}ba'}), steps])
        trainer.fit()
        trainer.close()
        bare = statistics.median(steps.bare)
        medians.append(statistics.median(steps.beside) / bare)
        means.append(statistics.mean(steps.beside) / statistics.mean(steps.bare))
        first.append(steps.beside[0] / bare)
        print(
            f'  {len(steps.beside)} steps beside a child, which lives {sum(steps.beside):.1f} s; a bare step {bare:.3f} s'
        )
    print(f'  their median {statistics.median(medians):.2f}, the first {statistics.median(first):.2f}')
    report('a step while a child writes against one without', statistics.median(means), 1.2)
    _fork()


def _fork() -> None:
    model = torch.nn.Linear(1024, 1024, bias=False)
    memory = torch.ones(4 * _GIB // 4)
    print(f'  a fork with 4 GiB: {_milliseconds_of_fork():.0f} ms', end='')
    model.weight = torch.nn.Parameter(memory)
    exclude_from_children(model, lambda model: host_memory(model, []))
    print(f'; if they are weights: {_milliseconds_of_fork():.0f} ms')


def _milliseconds_of_fork() -> float:
    taken = []
    for _ in range(3):
        begin = time.perf_counter()
        forked = fork(list)
        taken.append(time.perf_counter() - begin)
        assert forked is not None
        forked.results()
    return 1e3 * statistics.median(taken)


def _trainer(callbacks: list[Callback]) -> Trainer:
    torch.manual_seed(0)
    model = ByteGPT(d_model=384, n_layers=6, max_seq_len=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return gpt_trainer(callbacks, model, optimizer, batch_size=4, max_duration=f'{_BEFORE + _WINDOW + _AFTER}ba')
