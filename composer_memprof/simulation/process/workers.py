"""A process's DataLoader workers: their host memory, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

from composer_memprof.recorders.host.processes import child_pids, is_dataloader_worker, private_peak


class WorkerMemory:
    """The most private memory of the workers that run at once, as far as it was read; no thread reads it.

    Attributes:
        bytes: without what workers share with the process that started them, such as the dataset.
        count: how many workers they were.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.count = 0

    def read(self) -> None:
        """Read the workers that run now. Takes milliseconds for each."""
        sizes = list(_peaks())
        if sum(sizes) > self.bytes:
            self.bytes, self.count = sum(sizes), len(sizes)


def end_workers() -> None:
    """End this process's workers, which exit without an error when SIGTERM comes from here.

    torch would wait five seconds for each worker that the script still holds.
    """
    for pid in _workers():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _workers() -> Iterator[int]:
    return filter(is_dataloader_worker, child_pids(os.getpid()))


def _peaks() -> Iterator[int]:
    for pid in _workers():
        peak = private_peak(pid)
        if peak is not None:
            yield peak
