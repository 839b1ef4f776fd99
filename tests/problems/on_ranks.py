"""Problems of one rank of two, and of one machine of two. Each is trained by processes over gloo."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from composer.models import ComposerModel
from composer.utils import dist
from torch import nn
from torch.utils.data import DataLoader

from composer_memprof import FSDPMemTracker, HostRSS, MemorySnapshot, StepTimes
from tests.conftest import Noise, Regression, child_environment, make_trainer
from tests.problems.problem import Problem, line_of
from tests.support.callbacks.host_memory import MIB
from tests.support.processes import warm_python
from tests.support.processes.forked_python import LAUNCHER
from tests.support.processes.ranks import python_on_ranks


def is_slow() -> bool:
    """True on the rank that has the problem."""
    return dist.get_global_rank() == 1


class SlowNoise(Noise):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.005 if is_slow() else 0)
        return super().__getitem__(index)


class SlowForward(Regression):
    def forward(self, batch: Any) -> torch.Tensor:
        time.sleep(0.04 if is_slow() else 0)
        return super().forward(batch)


class InBatchFive(Regression):
    """One rank has the problem in the fifth batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def has_it_now(self) -> bool:
        """Asked once in each batch."""
        self.batches += 1
        return is_slow() and self.batches == 5


class StaysAway(InBatchFive):
    """The rank does not come to the collective calls of the batch's backward."""

    def forward(self, batch: Any) -> torch.Tensor:
        time.sleep(60 if self.has_it_now() else 0)
        return super().forward(batch)


class CallsAlone(InBatchFive):
    """The rank comes to a barrier, the other does not."""

    def forward(self, batch: Any) -> torch.Tensor:
        if self.has_it_now():
            torch.distributed.barrier()
        return super().forward(batch)


class OnTwoMachines(Regression):
    """The second half of the ranks is on a slow machine."""

    def forward(self, batch: Any) -> torch.Tensor:
        time.sleep(0.08 if _is_on_second_machine() else 0.02)
        return super().forward(batch)


def _is_on_second_machine() -> bool:
    return 2 * dist.get_global_rank() >= dist.get_world_size()


def _trains_on_two_machines() -> None:
    name = f'node-{int(_is_on_second_machine())}'
    socket.gethostname = lambda: name
    _train(StepTimes(), model=OnTwoMachines(), data=_loader(Noise(640)))


class EvenForward(Regression):
    """Takes the same time on each rank, and far longer than the loop."""

    def forward(self, batch: Any) -> torch.Tensor:
        time.sleep(0.03)
        return super().forward(batch)


class LongForward(Regression):
    """Takes time for each sample."""

    def forward(self, batch: Any) -> torch.Tensor:
        time.sleep(0.0005 * len(batch[0]))
        return super().forward(batch)


class Garbage(Regression):
    """On one rank, Python collects garbage again and again, over very many objects."""

    def __init__(self) -> None:
        super().__init__()
        self.table = [{'row': row} for row in range(400_000 if is_slow() else 0)]

    def forward(self, batch: Any) -> torch.Tensor:
        self.first = [[row] for row in range(30_000 if is_slow() else 0)]
        self.second = [[row] for row in range(30_000 if is_slow() else 0)]
        return super().forward(batch)


class KeepsHidden(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, batch: Any) -> torch.Tensor:
        if is_slow():
            self.seen.append(torch.ones(MIB // 4))
        return super().forward(batch)


class Fails(InBatchFive):
    def forward(self, batch: Any) -> torch.Tensor:
        if self.has_it_now():
            raise ValueError('shard 17 is damaged')
        return super().forward(batch)


class LargeEmbedding(ComposerModel):
    """FSDP2 shards its blocks, and nobody wraps the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(60_000, 64)
        self.blocks = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
        self.head = nn.Linear(64, 1)

    def forward(self, batch: Any) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(torch.zeros(8, dtype=torch.long))))

    def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
        return outputs.mean()

    def eval_forward(self, batch: Any, outputs: Any = None) -> torch.Tensor:
        return self(batch)


def _sharded_blocks() -> LargeEmbedding:
    from torch.distributed.fsdp import fully_shard

    model = LargeEmbedding()
    for block in model.blocks:
        fully_shard(block)
    return model


def _loader(data: Noise, size: int = 8) -> DataLoader:
    return DataLoader(data, batch_size=size, sampler=dist.get_sampler(data))


def _train(*callbacks: Any, data: Any = None, **more: Any) -> None:
    loader = data or _loader(Noise(320))
    trainer = make_trainer(*callbacks, train_dataloader=loader, max_duration='20ba', **more)
    trainer.fit()
    trainer.close()


def _large() -> Regression:
    model = Regression()
    model.net = nn.Sequential(nn.Linear(16, 1000), nn.Linear(1000, 1000), nn.Linear(1000, 1))
    return model


RUNS: dict[str, Callable[[], None]] = {
    'slow data on a rank': lambda: _train(StepTimes(), data=_loader(SlowNoise(320))),
    'a slow forward on a rank': lambda: _train(StepTimes(), model=SlowForward()),
    'larger batches on a rank': lambda: _train(
        StepTimes(), model=LongForward(), data=_loader(Noise(5120), 64 if is_slow() else 8)
    ),
    'a rank that never comes': lambda: _train(StepTimes(), MemorySnapshot(), model=StaysAway()),
    'a barrier of one rank': lambda: _train(StepTimes(), MemorySnapshot(), model=CallsAlone()),
    'a slow machine': _trains_on_two_machines,
    'garbage collections on a rank': lambda: _train(StepTimes(), model=Garbage()),
    'a leak on a rank': lambda: _train(MemorySnapshot(), model=KeepsHidden()),
    'an exception on a rank': lambda: _train(StepTimes(), MemorySnapshot(), model=Fails()),
    'an embedding that FSDP left whole': lambda: _train(MemorySnapshot(), model=_sharded_blocks()),
    'a model that nobody shards': lambda: _train(FSDPMemTracker(), model=_large()),
    'healthy ranks': lambda: _train(StepTimes(), MemorySnapshot(), HostRSS(), model=EvenForward()),
}


def run(name: str) -> None:
    """Train one of them, on each rank."""
    dist.initialize_dist('cpu', timeout=8 if 'never comes' in name or 'barrier' in name else 30)
    RUNS[name]()


def _apart(name: str, ranks: int = 2, fails: bool = False) -> Callable[[], None]:
    def on_ranks() -> None:
        with contextlib.suppress(AssertionError) if fails else contextlib.nullcontext():
            python_on_ranks(_script(name), folder=Path.cwd(), ranks=ranks, timeout=120)

    return on_ranks


def _launched(name: str) -> Callable[[], None]:
    """By torchrun, which ends the other ranks with SIGTERM after one has failed."""

    def by_torchrun() -> None:
        launcher = ['torch.distributed.run', '--nproc-per-node', '2', '--standalone', _script(name)]
        done = warm_python.run(
            [sys.executable, '-c', LAUNCHER, *launcher],
            env=child_environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 1, done.stderr[-2000:]

    return by_torchrun


def _script(name: str) -> str:
    Path('script.py').write_text(f'from tests.problems.on_ranks import run\nrun({name!r})\n')
    return 'script.py'


def _run_of(name: str) -> Callable[[], None]:
    if 'never comes' in name or 'barrier' in name:
        return _launched(name)
    return _apart(name, ranks=4 if 'machine' in name else 2, fails='exception' in name)


_WHOLE = 60_000 * 64 * 4

PROBLEMS: dict[str, Problem] = {
    name: Problem(_run_of(name), says, change, size)
    for name, says, change, size in (
        (
            'slow data on a rank',
            ('wait for rank 1', 'loading of data', line_of(SlowNoise.__getitem__, 'sleep')),
            'workers, such as num_workers',
            0,
        ),
        (
            'a slow forward on a rank',
            ('wait for rank 1', 'forward', line_of(SlowForward.forward, 'sleep')),
            'on rank 1',
            0,
        ),
        ('larger batches on a rank', ('wait for rank 1', '8.0 times as large'), 'batches of one size', 0),
        (
            'a rank that never comes',
            (
                'Rank 1 did not come to what rank 0 waited for',
                'in batch 4',
                line_of(StaysAway.forward, 'sleep').replace(' ', ' in '),
            ),
            'Find out why rank 1 stayed',
            0,
        ),
        (
            'a barrier of one rank',
            (
                'Rank 1 called torch.distributed.barrier',
                line_of(CallsAlone.forward, 'barrier').replace(' ', ' in '),
                'rank 0 did not',
            ),
            'Let all ranks call torch.distributed.barrier',
            0,
        ),
        ('a slow machine', ('wait for ranks 2, 3', 'all of node-1', 'forward'), 'Look at node-1', 0),
        ('garbage collections on a rank', ('wait for rank 1', 'garbage collector'), 'gc.disable()', 0),
        (
            'a leak on a rank',
            ('leaks on rank 1', line_of(KeepsHidden.forward, 'torch.ones'), 'KeepsHidden.seen'),
            'Stop keeping',
            MIB,
        ),
        (
            'an exception on a rank',
            ('Rank 1 failed in batch 4', 'shard 17 is damaged', 'on_ranks.py:'),
            'rank 1 failed there',
            0,
        ),
        ('an embedding that FSDP left whole', ('leaves modules whole', 'embedding'), 'Shard embedding', _WHOLE),
    )
}
HEALTHY: dict[str, Callable[[], None]] = {'healthy ranks': _apart('healthy ranks')}
