"""Deadlines of work that must end when the process ends."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional


def exiting() -> bool:
    """True if the interpreter is shutting down; threads and forks then no longer start."""
    return sys.is_finalizing() or not threading.main_thread().is_alive()


@dataclass
class _Leaving:
    """When this process began to leave, on the monotonic clock, and whether a person pressed Ctrl-C to end it."""

    since: Optional[float] = None
    hurried: bool = False


_leaving = _Leaving()


def leave(hurried: bool = False) -> None:
    """Shorten all deadlines from the first call on, because a launcher kills the job soon.

    Args:
        hurried (bool): somebody pressed Ctrl-C, so that uploads are not waited for.
    """
    if _leaving.since is None:
        _leaving.since = time.monotonic()
    _leaving.hurried = _leaving.hurried or hurried


def stay() -> None:
    """Restore the full deadlines, because another run begins."""
    _leaving.since, _leaving.hurried = None, False


def is_leaving() -> bool:
    return _leaving.since is not None


def is_hurried() -> bool:
    """True if somebody pressed Ctrl-C while the process was leaving."""
    return _leaving.hurried


class Deadline:
    """The end of a wait. It comes sooner if the process begins to leave in the meantime.

    Args:
        seconds (float): from now.
        if_leaving (float): seconds from when the process began to leave; at interpreter exit, that is now at the latest.
        if_hurried (float, optional): in place of ``if_leaving`` once somebody pressed Ctrl-C.
    """

    def __init__(self, seconds: float, *, if_leaving: float, if_hurried: Optional[float] = None) -> None:
        if exiting():
            leave()
        self._end = time.monotonic() + seconds
        self._if_leaving = if_leaving
        self._if_hurried = if_leaving if if_hurried is None else if_hurried

    def left(self) -> float:
        """Seconds until the deadline; 0 if it has passed."""
        end = self._end
        if _leaving.since is not None:
            end = min(end, _leaving.since + (self._if_hurried if _leaving.hurried else self._if_leaving))
        return max(0.0, end - time.monotonic())


_at_end: list[Callable[[], None]] = []


def at_end(function: Callable[[], None]) -> None:
    """Call ``function`` at interpreter exit, after this package's other exit handlers."""
    _at_end.append(function)


def _end() -> None:
    for function in _at_end:
        function()


# Exit handlers run in reverse order. Modules that import this one register theirs later, which therefore run earlier.
atexit.register(_end)
