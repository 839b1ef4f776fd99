"""The host memory of a process's DataLoader workers."""

from __future__ import annotations

import os
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


def _peaks() -> Iterator[int]:
    for pid in child_pids(os.getpid()):
        peak = private_peak(pid) if is_dataloader_worker(pid) else None
        if peak is not None:
            yield peak
