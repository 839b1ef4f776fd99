"""The signals that stop a job, and how to defer them."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer SIGTERM and SIGINT to the end of the block.

    Composer turns them into an exception at any line of the main thread, which could lose a recording that is being
    handed over. Does nothing on other threads, which get no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    try:
        for number in STOPPING:
            handler = signal.getsignal(number)
            if handler is not None:  # None: not installed by Python, which could not put it back
                handlers[number] = handler
                signal.signal(number, lambda which, frame: received.append(which))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for which in received:
            signal.raise_signal(which)
