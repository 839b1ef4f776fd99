"""One window of step times: the running totals of its batches, and the thread that writes their records."""

from __future__ import annotations

import collections
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Optional

from composer_memprof.recorders.host.sampler import Sampler
from composer_memprof.recorders.step_times.summary import BatchTimes, StepTimesTally

#: Seconds between two writes of records.
_WRITE_EVERY_S = 0.5


class StepTimesWindow:
    """Adds batches up, and writes a line of JSON for each on a thread of its own.

    Args:
        write (Callable, optional): takes a line. None: batches are only added up.
        workers (int): of the DataLoader.
    """

    def __init__(self, write: Optional[Callable[[str], None]], workers: int = 0) -> None:
        self.tally = StepTimesTally(workers)
        self._write_line = write
        self._unwritten: collections.deque[BatchTimes] = collections.deque()
        self._writer = Sampler('memprof-step-times', _WRITE_EVERY_S, self._write)
        if write is not None:
            self._writer.start()

    @property
    def error(self) -> Optional[Exception]:
        """Why nothing is written any more, if so."""
        return self._writer.error

    def add(self, times: BatchTimes) -> None:
        """Take in the next batch."""
        self.tally.add(times)
        if self._write_line is not None:
            self._unwritten.append(times)

    def close(self) -> None:
        """Write the lines that are left."""
        if self._writer.stop():
            self._write()

    def _write(self) -> None:
        while self._write_line is not None and self._unwritten:
            self._write_line(json.dumps(asdict(self._unwritten[0])))
            self._unwritten.popleft()
