"""The closes of a Trainer's callbacks: no signal skips one of them, and none of ours is left out.

Composer turns SIGTERM and SIGINT into an exception, wherever the main thread is. We do the same with SIGHUP. While
Composer closes callbacks one after the other, that would skip all that follow, and a profiler that is never stopped hangs
the interpreter. So signals are deferred: from the first of our closes to the last ``post_close`` of all callbacks, and
from the beginning of interpreter exit to its end. The first signal starts the clock of ``close_timeout``. A second Ctrl-C
is not deferred.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import signal
import sys
import weakref
from types import FrameType
from typing import Optional, Protocol

from composer.core import Callback, Engine, State

from composer_memprof.artifacts.uploading.last_uploads import last_uploads
from composer_memprof.artifacts.writing import deadlines as exiting
from composer_memprof.artifacts.writing.deadlines import Deadline
from composer_memprof.callbacks.framework.closing.closing_line import forget_files, say_what_was_written
from composer_memprof.messages import errors_logged
from composer_memprof.signals import DeferredSignals, HangUp


class Closable(Protocol):
    """What this module needs of a callback."""

    def close_late(self, *, save: bool) -> None:
        """At interpreter exit, because its close was skipped: save the open window, or only end the recording."""

    def leave_to_parent(self) -> None:
        """In a forked child: the run and its files are the parent's."""


#: Composer's function that closes all callbacks of a Trainer, by its module and name.
_CLOSES = (Engine.__module__, '_close')
#: The callbacks that are to be closed.
_open: weakref.WeakSet[Closable] = weakref.WeakSet()


class _Exit:
    """What is known of this process's end."""

    begun = False
    #: Somebody insisted: the closes were interrupted.
    forced = False
    #: The longest ``close_timeout``, or its default.
    timeout = 20.0
    #: Until when signals are deferred, from the first one on.
    patience: Optional[Deadline] = None


def will_close(callback: Closable, timeout: float) -> None:
    """At INIT: ``callback`` is to be closed, and may take ``timeout`` seconds for it."""
    exiting.stay()
    _Exit.patience = None
    _open.add(callback)
    _hang_up.begin()
    _Exit.timeout = max(_Exit.timeout, timeout)
    # Exit handlers run in reverse order: this one before the closes, which the Trainer's engine has registered.
    atexit.unregister(_exit_begins)
    atexit.register(_exit_begins)


def is_closed(callback: Closable) -> None:
    _open.discard(callback)
    if not _open:
        _hang_up.end()


def defer_signals(state: State) -> None:
    """At each of our closes: defer signals until all callbacks of ``state`` are closed."""
    if exiting.exiting():
        exiting.leave()
    if _Exit.begun or not _is_closing_all(sys._getframe()):
        return
    _signals.begin()
    if not any(isinstance(callback, _Last) for callback in state.callbacks):
        state.callbacks.append(_Last(state.callbacks))  # Composer goes through this list now
        last_uploads.begin()


class _Last(Callback):
    """Is closed after all other callbacks."""

    def __init__(self, callbacks: list[Callback]) -> None:
        self._callbacks = callbacks

    def post_close(self) -> None:
        self._callbacks.remove(self)
        last_uploads.end()
        say_what_was_written()
        if not _Exit.begun:
            _signals.end()


def _is_closing_all(frame: Optional[FrameType]) -> bool:
    """Whether ``frame`` is within Composer's closes."""
    while frame is not None and (frame.f_globals.get('__name__'), frame.f_code.co_name) != _CLOSES:
        frame = frame.f_back
    return frame is not None


def _defers(number: int, frame: Optional[FrameType]) -> bool:
    """Whether the signal has to wait for the closes."""
    if not _Exit.begun and not _is_closing_all(frame):  # they broke off, by an exception that Composer does not catch
        return False
    insists = number == signal.SIGINT and exiting.is_hurried()
    if insists or (_Exit.patience is not None and not _Exit.patience.left()):
        _Exit.forced = True
        return False
    _Exit.patience = _Exit.patience or Deadline(_Exit.timeout, if_leaving=math.inf)
    exiting.leave(hurried=number == signal.SIGINT)
    if number == signal.SIGINT:  # not by print: the signal may have come in the midst of one
        os.write(2, b'composer_memprof: closing, without waiting for uploads. Press Ctrl-C again to break off\n')
    return True


_signals = DeferredSignals(_defers)
_hang_up = HangUp()


def _exit_begins() -> None:
    _Exit.begun = True
    _signals.begin()


def _close_the_rest() -> None:
    """Whatever skipped a close: no recording is lost, and no profiler stays open, on which the interpreter would hang."""
    for callback in list(_open):
        with errors_logged('a close at the exit failed'):
            callback.close_late(save=not _Exit.forced)
    say_what_was_written()  # of the closes at the exit


def _leave_to_parent() -> None:
    """In a forked child, whose exit handlers would close the parent's callbacks a second time."""
    for callback in list(_open):
        callback.leave_to_parent()
    _open.clear()
    forget_files()


def _exit_ends() -> None:
    with contextlib.suppress(SystemExit, KeyboardInterrupt):  # the process exits already
        _signals.end()


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_leave_to_parent)
atexit.register(_close_the_rest)
exiting.at_end(_exit_ends)
