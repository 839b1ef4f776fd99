"""A long run with all callbacks in repeated windows: memory, threads, open files and children stay as they are.

``make bench ARGS=soak`` trains ``SOAK_BATCHES`` batches (10,000) with all callbacks, and as many with none. It takes
some minutes.
"""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import psutil
import torch
from composer import Trainer
from composer.core import Callback

from tests.benchmarks.callbacks.every_callback import every_callback
from tests.conftest import Regression, child_environment, loader

_C = ctypes.CDLL(None)
_BATCHES = int(os.environ.get('SOAK_BATCHES', '10000'))
_PERIOD = 200
_EACH = 500
#: Until then memory may grow: what is imported and compiled once, pools that fill.
_SETTLED = 1000


@dataclass(frozen=True)
class Sample:
    """What the process has at one batch. ``blocks`` are Python's allocated objects, ``rss`` is in MB."""

    batch: int
    rss: float
    blocks: int
    threads: int
    files: int
    children: int


class Samples(Callback):
    """Takes one every ``_EACH`` batches, just before the next windows open."""

    def __init__(self) -> None:
        self.taken: list[Sample] = []
        self._process = psutil.Process()

    def batch_end(self, state: Any, logger: Any) -> None:
        batch = state.timestamp.batch.value
        if batch % _EACH:
            return
        gc.collect()
        _C.malloc_trim(0)  # what malloc keeps for later grows in steps, and tells nothing of what is in use
        process = self._process
        sample = Sample(
            batch,
            process.memory_info().rss / 1e6,
            sys.getallocatedblocks(),
            threading.active_count(),
            process.num_fds(),
            len(process.children()),
        )
        self.taken.append(sample)
        print('  {:>6} {:>9.1f} {:>9} {:>8} {:>6} {:>9}'.format(*astuple(sample)), flush=True)


def soak(rounds: int) -> None:
    del rounds  # one is long enough
    for name in ('none', 'all'):
        print(f'  callbacks: {name}\n   batch    RSS MB    blocks  threads  files  children', flush=True)
        # A process each: what the one leaves must not count for the other.
        command = [sys.executable, '-W', 'ignore', '-m', 'tests.benchmarks.artifacts.soak', name]
        subprocess.run(command, env=child_environment(), check=True)


def _train(callbacks: Sequence[Callback]) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, samples = Regression(), Samples()
    trainer = Trainer(
        model=model,
        train_dataloader=loader(500, batch_size=2),
        optimizers=torch.optim.AdamW(model.parameters(), lr=1e-3),
        max_duration=f'{_BATCHES}ba',
        callbacks=[*callbacks, samples],
        run_name='soak',
        device='cpu',
        seed=1,
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    settled = [sample for sample in samples.taken if sample.batch >= _SETTLED]
    if len(settled) < 2:
        return
    batches = [sample.batch / 1000 for sample in settled]
    for unit, values in (('MB', [s.rss for s in settled]), ('blocks', [float(s.blocks) for s in settled])):
        print(f'  a thousand batches add {statistics.linear_regression(batches, values).slope:.2f} {unit}')


if __name__ == '__main__':
    _train(every_callback(_PERIOD) if sys.argv[1] == 'all' else [])
