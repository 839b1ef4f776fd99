"""Runs that are killed when host memory is full, or whose worker is. Each is trained in a process of its own."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import psutil
from composer.core import Callback, State
from composer.loggers import Logger
from torch.utils.data import DataLoader, get_worker_info

from composer_memprof import HostRSS, MemorySnapshot, StepTimes
from composer_memprof.cgroup import CgroupMemory
from composer_memprof.recorders.host import recorder
from tests.conftest import Noise, Regression, train
from tests.problems.on_host import Rows, read_copies_often
from tests.problems.problem import Problem, in_own_process
from tests.support.callbacks.host_memory import MIB, fresh_memory

_ROOM = 320 * MIB


class LeaksUntilKilled(Regression):
    """Keeps mebibytes of each batch; near the limit the process gets the kernel's signal."""

    def __init__(self, limit: int, mebibytes: int) -> None:
        super().__init__()
        self.kept: list[Any] = []
        self.limit, self.mebibytes = limit, mebibytes

    def forward(self, batch: Any) -> Any:
        self.kept += [fresh_memory() for _ in range(self.mebibytes)]
        time.sleep(0.01)
        if _resident() > self.limit - 20 * MIB:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(batch)


class CopiesForCheckpoint(Callback):
    """Copies the model to save it, which takes as much again, with which the process is over its limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        del logger
        if state.timestamp.batch.value == 4:
            self.copies = [fresh_memory() for _ in range(_ROOM // MIB - 20)]
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)


class WithoutRoom(Noise):
    """A worker that writes to shared memory that is full gets SIGBUS."""

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None and index == 60:
            os.kill(os.getpid(), signal.SIGBUS)
        return super().__getitem__(index)


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


def trains(mebibytes: int) -> None:
    """Train until the process is killed."""
    limit = _limited()
    train(HostRSS(interval=0.02), model=LeaksUntilKilled(limit, mebibytes), batches=1000)


def saves() -> None:
    """Train until a checkpoint needs too much."""
    train(HostRSS(interval=0.02), CopiesForCheckpoint(_limited()), batches=20)


def copies() -> None:
    """Train until the workers have copied so much of the data set that the process is over its limit."""
    read_copies_often()
    data = Rows()  # before the limit is known
    limit = _resident()
    taken = 0

    class Filled(recorder.Cgroup):
        """Of a process and its workers, what is private."""

        def read(self) -> CgroupMemory:
            nonlocal taken
            taken = _resident() + sum(_private(each) for each in psutil.Process().children())
            return CgroupMemory(taken, limit)

    class Killed(Callback):
        def batch_end(self, state: State, logger: Logger) -> None:
            if taken >= limit:
                os.kill(os.getpid(), signal.SIGKILL)

    recorder.Cgroup = Filled  # type: ignore[misc]
    limit += 150 * MIB
    loader = DataLoader(data, batch_size=8, num_workers=2)
    train(HostRSS(interval=0.05), StepTimes(), Killed(), train_dataloader=loader, max_duration='20ep')


def _private(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().uss)
    except psutil.Error:
        return 0


def loads() -> None:
    """Train until shared memory is full."""
    train(MemorySnapshot(), StepTimes(), train_dataloader=DataLoader(WithoutRoom(160), batch_size=8, num_workers=2))


def _limited() -> int:
    limit = _resident() + _ROOM

    class Limited(recorder.Cgroup):
        """The cgroup of this process, if it had that limit."""

        def read(self) -> CgroupMemory:
            return CgroupMemory(_resident(), limit)

    recorder.Cgroup = Limited  # type: ignore[misc]
    return limit


PROBLEMS: dict[str, Problem] = {
    'killed when host memory was full': Problem(
        in_own_process('killed', 'trains(1)', -signal.SIGKILL),
        ('Rank 0 was killed when host memory was full', "'forward'", 'LeaksUntilKilled.kept'),
        'Stop keeping what batches put into LeaksUntilKilled.kept',
        MIB,
    ),
    'killed after few batches': Problem(
        in_own_process('killed', 'trains(32)', -signal.SIGKILL),
        ('Rank 0 was killed when host memory was full', 'too short', "'forward'"),
        'Look in the training process',
    ),
    'a checkpoint that takes host memory': Problem(
        in_own_process('killed', 'saves()', -signal.SIGKILL),
        ('Rank 0 was killed when host memory was full', "'checkpoint'"),
        'Save',
    ),
    'workers that copy until memory is full': Problem(
        in_own_process('killed', 'copies()', -signal.SIGKILL),
        ('Rank 0 was killed when host memory was full', '2 DataLoader workers', 'Rows.rows', 'copy-on-write'),
        'Keep the samples of Rows.rows in a numpy array',
    ),
    'shared memory that is full': Problem(
        in_own_process('killed', 'loads()', 1), ('Rank 0 failed', 'Bus error'), 'more shared memory'
    ),
}
