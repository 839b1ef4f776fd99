"""Signals that stop a job, and the few moments in which they have to wait."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold SIGTERM and SIGINT back until the block is left.

    Composer makes them an exception, at whatever line the main thread has come to: a recording that is half handed
    over would be lost. On other threads there is nothing to hold back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before: dict[signal.Signals, Any] = {}
    try:
        for number in STOPPING:
            handler = signal.getsignal(number)
            if handler is not None:  # None: not Python's, which can't be put back from here
                before[number] = handler
                signal.signal(number, lambda which, frame: came.append(which))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for which in came:
            signal.raise_signal(which)
