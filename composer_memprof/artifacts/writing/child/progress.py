"""Tells a process that works, however slowly, from one that is stuck."""

from __future__ import annotations

import time
from typing import Any

import psutil


class Progress:
    """The progress of a child process: CPU time, and bytes that it reads and writes.

    Args:
        pid (int): its process id.
        patience (float): seconds without any progress after which it counts as stuck.
    """

    def __init__(self, pid: int, patience: float) -> None:
        self._pid = pid
        self._patience = patience
        self._seen: Any = None
        self._since = time.monotonic()

    def is_stuck(self) -> bool:
        """True if it made no progress for too long. Call it again and again."""
        now = self._read()
        if now != self._seen:
            self._seen, self._since = now, time.monotonic()
        return time.monotonic() - self._since > self._patience

    def _read(self) -> Any:
        try:
            process = psutil.Process(self._pid)
            return process.cpu_times(), process.io_counters()
        except (psutil.Error, OSError, NotImplementedError):  # it has ended, or its bytes can't be read here
            return None
