"""Detects a child process that is stuck: it uses no CPU time and reads and writes nothing."""

from __future__ import annotations

import time
from typing import Any

import psutil


class StuckDetector:
    """Compares the CPU time of a process, and the bytes that it read and wrote, with those at earlier calls.

    Args:
        pid (int): the process.
        patience (float): seconds without any progress after which it counts as stuck.
    """

    def __init__(self, pid: int, patience: float) -> None:
        self._pid = pid
        self._patience = patience
        self._seen: Any = None
        self._since = time.monotonic()

    def is_stuck(self) -> bool:
        """True if the process has made no progress for ``patience`` seconds. Call this method repeatedly."""
        now = self._read()
        if now != self._seen:
            self._seen, self._since = now, time.monotonic()
        return time.monotonic() - self._since > self._patience

    def _read(self) -> Any:
        try:
            process = psutil.Process(self._pid)
            return process.cpu_times(), process.io_counters()
        except (psutil.Error, OSError, NotImplementedError):  # the process has ended, or its bytes can't be read here
            return None
