"""The signals that stop a job, and how to defer them."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Optional

STOPPING = (signal.SIGTERM, signal.SIGINT)

#: Given a signal and the frame that it interrupted: whether to defer it. If not, it goes to its own handler at once.
Defers = Callable[[int, Optional[FrameType]], bool]


class DeferredSignals:
    """Receives SIGTERM and SIGINT in place of their handlers, from :meth:`begin` to :meth:`end`.

    Args:
        defers (Callable, optional): asked about each signal. After the first that it does not defer the handlers are
            back in their places. Default: all are deferred.
    """

    def __init__(self, defers: Defers = lambda number, frame: True) -> None:
        self._defers = defers
        self._handlers: dict[signal.Signals, Any] = {}
        self._received: list[int] = []

    def begin(self) -> None:
        """Defer from here on. Does nothing a second time, and on other threads than the main one, which get no signals."""
        if self._handlers or threading.current_thread() is not threading.main_thread():
            return
        for number in STOPPING:
            handler = signal.getsignal(number)
            # None: not installed by Python, which could not put it back
            if handler not in (None, signal.SIG_IGN):
                self._handlers[number] = handler
                signal.signal(number, self._receive)

    def end(self) -> None:
        """Put the handlers back, and pass on what came."""
        self._put_back()
        received, self._received = self._received, []
        for number in received:
            signal.raise_signal(number)

    def _put_back(self) -> None:
        handlers, self._handlers = self._handlers, {}
        for number, handler in handlers.items():
            if signal.getsignal(number) == self._receive:  # else other code has installed its own in the meantime
                signal.signal(number, handler)

    def _receive(self, number: int, frame: Optional[FrameType]) -> None:
        self._received.append(number)
        if not self._defers(number, frame):
            self._received = [number]
            self.end()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer SIGTERM and SIGINT to the end of the block.

    Composer turns them into an exception at any line of the main thread, which could lose a recording that is being
    handed over. Does nothing on other threads, which get no signals.
    """
    signals = DeferredSignals()
    try:
        signals.begin()
        yield
    finally:
        signals.end()
