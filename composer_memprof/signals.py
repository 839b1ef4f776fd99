"""Signals: defers the signals that stop a job, and holds handlers while code of this package runs.

A handler of the user, of Composer or of torch may raise an exception at any line of the main thread. The exception is
meant for the user's code. Inside of this package it would be caught with our own errors; inside of a call from torch's
C++ it could end the process. So while callbacks record, each handler is held until Composer's or the user's code runs
again, and then called.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any, Optional, TypeVar

#: Signals that stop a job. SIGHUP is sent when the terminal is closed; Windows has none.
STOPPING = tuple(getattr(signal, name) for name in ('SIGTERM', 'SIGINT', 'SIGHUP') if hasattr(signal, name))

#: Decides, from a signal and the frame that it interrupted, whether to defer the signal or call its handler at once.
Defers = Callable[[int, Optional[FrameType]], bool]

_Function = TypeVar('_Function', bound=Callable[..., Any])
#: ``signal.getsignal`` without its enums, which take twenty times as long. Each event of a callback asks for ten handlers.
#: From Python 3.11 on ``signal.getsignal`` does not say which function it wraps.
_handler_of: Callable[[int], Any] = importlib.import_module('_signal').getsignal


def _on_main_thread() -> bool:
    """True on the only thread on which handlers run and can be set."""
    return threading.current_thread() is threading.main_thread()


class _OwnHandler:
    """A handler that this module sets in place of another one.

    Args:
        before (Any): the handler that was set before.
        is_needed (Callable): False once ``before`` is to be set again.
    """

    def __init__(self, before: Any, is_needed: Callable[[], bool]) -> None:
        self.before = before
        self.is_needed = is_needed


def _needed(handler: Any) -> Any:
    """``handler``; for a handler of this module that is not needed any more, the handler that was set before it."""
    while isinstance(handler, _OwnHandler) and not handler.is_needed():
        handler = handler.before
    return handler


def _take_back(numbers: Iterable[int]) -> None:
    """Remove our handlers that are not needed any more. A handler that other code has set in the meantime stays."""
    if not _on_main_thread():
        return
    for number in numbers:
        handler = _handler_of(number)
        if _needed(handler) is not handler:
            signal.signal(number, _needed(handler))


# -- deferring the signals that stop a job ------------------------------------------------------------------------


class DeferredSignals:
    """Receives the signals that stop a job in place of their handlers, from :meth:`begin` to :meth:`end`.

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
        if self._handlers or not _on_main_thread():
            return
        for number in STOPPING:
            handler = _handler_of(number)
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
            if _handler_of(number) == self._receive:  # else other code has installed its own in the meantime
                signal.signal(number, _needed(handler))

    def _receive(self, number: int, frame: Optional[FrameType]) -> None:
        self._received.append(number)
        if not self._defers(number, frame):
            self._received = [number]
            self.end()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer the signals that stop a job to the end of the block.

    Composer turns them into an exception at any line of the main thread, which could lose a recording that is being
    handed over. Does nothing on other threads, which get no signals.
    """
    signals = DeferredSignals()
    try:
        signals.begin()
        yield
    finally:
        signals.end()


# -- no handler runs in the midst of this package -----------------------------------------------------------------

#: The functions in which, and in whose callees, no handler runs.
_holding: set[CodeType] = set()
#: The objects for which handlers are held.
_users: weakref.WeakSet[Any] = weakref.WeakSet()
#: Signals that came in a function of ``_holding``, with their handlers.
waiting: list[tuple[Callable[..., Any], int]] = []
#: Signals for which handlers are often set anew in the course of a run, as by a timeout for each step.
_OFTEN = tuple(
    getattr(signal, name)
    for name in ('SIGALRM', 'SIGCHLD', 'SIGUSR1', 'SIGUSR2', 'SIGPROF', 'SIGVTALRM', 'SIGCONT')
    if hasattr(signal, name)
)


def holds_signals(function: _Function) -> _Function:
    """Decorator: no handler runs in ``function``; :func:`pass_on` calls it later. Costs nothing until a signal comes."""
    _holding.add(function.__code__)
    return function


class _HeldHandler(_OwnHandler):
    """Calls the handler in whose place it is set, now or later."""

    def __init__(self, before: Callable[..., Any]) -> None:
        super().__init__(before, lambda: bool(_users))

    def __call__(self, number: int, frame: Optional[FrameType]) -> Any:
        if _is_held(frame):
            waiting.append((self.before, number))
            return None
        return self.before(number, frame)


def _is_held(frame: Optional[FrameType]) -> bool:
    while frame is not None and frame.f_code not in _holding:
        frame = frame.f_back
    return frame is not None


class _HeldNumbers:
    """The watched signals: the frequent ones, and all that had a handler when the first user came."""

    watched: tuple[int, ...] = ()
    #: Their handlers, as the last :func:`refresh` left them. One comparison of all takes half the time of a loop.
    handlers: list[Any] = []


def hold(user: object) -> None:
    """Hold handlers from here on, until each user has called :func:`release`. Does nothing off the main thread."""
    if not _on_main_thread():
        return
    _users.add(user)
    with_handler = {number for number in signal.valid_signals() if callable(_handler_of(number))}
    _HeldNumbers.watched = tuple(with_handler.union(STOPPING, _OFTEN, _HeldNumbers.watched))
    refresh()


def refresh() -> None:
    """Hold handlers that were set since the last call too."""
    watched = _HeldNumbers.watched
    if not watched or not _on_main_thread() or [*map(_handler_of, watched)] == _HeldNumbers.handlers:
        return
    for number in watched:
        handler = _handler_of(number)
        # DeferredSignals has a method of its own there.
        if type(handler) is not _HeldHandler and callable(handler) and not _is_deferring(handler):
            signal.signal(number, _HeldHandler(handler))
    _HeldNumbers.handlers = [*map(_handler_of, watched)]


def _is_deferring(handler: Any) -> bool:
    return isinstance(getattr(handler, '__self__', None), DeferredSignals)


def release(user: object) -> None:
    """The opposite of :func:`hold`."""
    _users.discard(user)
    if not _users:
        watched, _HeldNumbers.watched, _HeldNumbers.handlers = _HeldNumbers.watched, (), []
        _take_back(watched)


def pass_on() -> None:
    """Call the handlers whose signals came in the meantime. What they raise goes to the caller."""
    while waiting and _on_main_thread():
        handler, number = waiting.pop(0)
        handler(number, sys._getframe(1))


# -- the end of the terminal --------------------------------------------------------------------------------------


class HangUp:
    """Lets SIGHUP end the process by ``SystemExit``, as Composer lets SIGTERM, from :meth:`begin` to :meth:`end`.

    Otherwise the process would end at once, without a close. A SIGHUP that is ignored (``nohup``) or has a handler is
    left alone.
    """

    def __init__(self) -> None:
        self._is_on = False
        self._pid = os.getpid()

    def begin(self) -> None:
        self._is_on, self._pid = True, os.getpid()
        number = getattr(signal, 'SIGHUP', None)
        if number is not None and _on_main_thread() and _handler_of(number) == signal.SIG_DFL:
            signal.signal(number, _HangUpHandler(signal.SIG_DFL, lambda: self._is_on, self._pid))

    def end(self) -> None:
        self._is_on = False
        if hasattr(signal, 'SIGHUP'):
            _take_back([signal.SIGHUP])


class _HangUpHandler(_OwnHandler):
    def __init__(self, before: Any, is_needed: Callable[[], bool], pid: int) -> None:
        super().__init__(before, is_needed)
        self._pid = pid

    def __call__(self, number: int, frame: Optional[FrameType]) -> None:
        del frame  # unused
        if os.getpid() == self._pid and self.is_needed():
            sys.exit(128 + number)
        signal.signal(number, self.before)  # in a DataLoader worker nothing is to be closed
        signal.raise_signal(number)
