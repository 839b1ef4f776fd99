"""Python's garbage collector, where it must not run."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

_Callback = Callable[[str, dict[str, Any]], None]
#: This package's part of ``gc.callbacks``, and how many blocks keep it out.
_watching: list[_Callback] = []
_kept_out = 0


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Pause the garbage collector. It is as it was after the block.

    >>> with no_collection():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def watch(callback: _Callback) -> None:
    """Call ``callback`` at the beginning and the end of each collection, but within :func:`unwatched`."""
    _watching.append(callback)
    if not _kept_out:
        gc.callbacks.append(callback)


def unwatch(callback: _Callback) -> bool:
    """End it. False if it has ended before."""
    if callback not in _watching:
        return False
    _watching.remove(callback)
    if callback in gc.callbacks:
        gc.callbacks.remove(callback)
    return True


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Collections call nothing of this package: Python may switch to another thread in it, in the middle of an allocation.

    >>> watch(print)
    >>> with unwatched():
    ...     print in gc.callbacks
    False
    >>> print in gc.callbacks, unwatch(print), print in gc.callbacks
    (True, True, False)
    """
    global _kept_out
    _kept_out += 1
    for callback in _watching:
        if callback in gc.callbacks:
            gc.callbacks.remove(callback)
    try:
        yield
    finally:
        _kept_out -= 1
        if not _kept_out:
            gc.callbacks.extend(callback for callback in _watching if callback not in gc.callbacks)
