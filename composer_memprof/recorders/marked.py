"""Functions that are marked for profilers: ``@memprofilable``, or ``with memprofilable('name'):``.

While no profiler is connected, a marked function costs one more call, and nothing else happens.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Union

import torch


class Listener(Protocol):
    """Who is told of marked functions. Neither method may raise."""

    def begin(self, name: str) -> Any:
        """A function begins; what is returned comes back when it ends."""

    def end(self, call: Any) -> None: ...


_listeners: tuple[Listener, ...] = ()


def connect(listener: Listener) -> None:
    """Tell ``listener`` of every marked function from now on, on any thread of this process."""
    global _listeners
    if listener not in _listeners:
        _listeners = (*_listeners, listener)


def disconnect(listener: Listener) -> None:
    global _listeners
    _listeners = tuple(each for each in _listeners if each is not listener)


def _forget_all() -> None:
    global _listeners
    _listeners = ()


# A DataLoader's worker has the listeners of its parent, and none of their files.
if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_forget_all)


def memprofilable(target: Union[str, Callable[..., Any]]) -> Any:
    """Mark a function, a method, or a stretch of code, for :class:`MemProfiler`.

    May be nested, recursive, and run on any thread. Coroutines and generators are seen from their first step to their
    end.

    >>> @memprofilable
    ... def tokenize(text):
    ...     return text.split()
    >>> with memprofilable('sampling'):
    ...     tokens = tokenize('a b')

    Args:
        target (Callable | str): what is marked, under its ``__name__``; or a name, which gives a context manager that
            is a decorator too.
    """
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(memprofilable(target.__func__))
    if isinstance(target, str):
        return _Mark(target)
    return _marked(target, getattr(target, '__name__', type(target).__name__))


def _marked(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            with _told(name):
                return await function(*args, **kwargs)

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with _told(name):
                return (yield from function(*args, **kwargs))

    else:

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not _listeners or torch.compiler.is_dynamo_compiling():
                return function(*args, **kwargs)
            with _told(name):
                return function(*args, **kwargs)

    return call


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Those who listen as it begins are told of its end, too."""
    told = [(listener, listener.begin(name)) for listener in _listeners]
    try:
        yield
    finally:
        for listener, call in reversed(told):
            listener.end(call)


class _Mark:
    """A name for a stretch of code, or for a function. One may be entered again while it is entered."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._entered = threading.local()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return _marked(function, self.name)

    def __enter__(self) -> None:
        told = _told(self.name)
        told.__enter__()
        self._entered.__dict__.setdefault('stack', []).append(told)

    def __exit__(self, *error: Any) -> None:
        self._entered.stack.pop().__exit__(*error)
