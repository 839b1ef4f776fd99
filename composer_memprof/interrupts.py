"""Ctrl-C where nothing has to be cleaned up: one line, and the end. Imports little, so that it works from the start."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import NoReturn

#: The exit code of a program that Ctrl-C ended.
INTERRUPTED = 128 + signal.SIGINT


def end_at_once(number: int = signal.SIGINT, frame: object = None) -> NoReturn:
    """A handler of SIGINT. It raises nothing: some modules catch every exception while they are imported."""
    del number, frame  # unused
    os.write(2, b'composer-memprof: interrupted\n')
    os._exit(INTERRUPTED)


@contextlib.contextmanager
def ctrl_c_ends_at_once() -> Iterator[None]:
    """Within the block, which must run on the main thread."""
    before = signal.signal(signal.SIGINT, end_at_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
