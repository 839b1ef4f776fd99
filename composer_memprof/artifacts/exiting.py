"""The end of the interpreter: whether it has come, and by when everything has to be over."""

from __future__ import annotations

import sys
import threading
import time
from typing import Optional


def exiting() -> bool:
    """Whether the interpreter is shutting down: from here on threads and forks can't be had."""
    return sys.is_finalizing() or not threading.main_thread().is_alive()


_exit_deadline: Optional[float] = None


def exit_deadline(timeout: float) -> float:
    """When everything at interpreter exit is to be over: ``timeout`` seconds after the first who asks."""
    global _exit_deadline
    if _exit_deadline is None:
        _exit_deadline = time.monotonic() + timeout
    return _exit_deadline
