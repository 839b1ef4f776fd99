"""Ctrl-C in a command: one line, and the exit code 130, at any moment. Imports little, so that it works from the start."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any, NoReturn

#: The exit code of a program that Ctrl-C ended.
INTERRUPTED = 128 + signal.SIGINT


def end_at_once(number: int = signal.SIGINT, frame: object = None) -> NoReturn:
    """A handler of SIGINT where nothing has to be cleaned up.

    It raises nothing: some modules catch every exception while they are imported, and click answers one of its own.
    """
    del number, frame  # unused
    clear = b'\r\033[K' if os.isatty(2) else b''  # a line that shows what is tried
    with contextlib.suppress(OSError):  # nobody may read it any more
        os.write(2, clear + b'composer-memprof: interrupted\n')
    os._exit(INTERRUPTED)


@contextlib.contextmanager
def ctrl_c_raises() -> Iterator[None]:
    """Within the block, Ctrl-C raises KeyboardInterrupt where :func:`end_at_once` would end the command."""
    if signal.getsignal(signal.SIGINT) is not end_at_once:
        yield
        return
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        signal.signal(signal.SIGINT, end_at_once)


@contextlib.contextmanager
def handler_kept() -> Iterator[None]:
    """Within the block, modules that are imported leave the handler of SIGINT alone. Composer's has a silent exit."""
    set_handler = signal.signal

    def set_others(number: int, handler: Any) -> Any:
        return signal.getsignal(number) if number == signal.SIGINT else set_handler(number, handler)

    signal.signal = set_others  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = set_handler
