"""Interpreter exit: whether it has begun, and until when work may take."""

from __future__ import annotations

import sys
import threading
import time
from typing import Optional


def exiting() -> bool:
    """True if the interpreter is shutting down; threads and forks then no longer start."""
    return sys.is_finalizing() or not threading.main_thread().is_alive()


_exit_deadline: Optional[float] = None


def exit_deadline(timeout: float) -> float:
    """The deadline for all work at interpreter exit, on the monotonic clock: ``timeout`` seconds after the first call."""
    global _exit_deadline
    if _exit_deadline is None:
        _exit_deadline = time.monotonic() + timeout
    return _exit_deadline
