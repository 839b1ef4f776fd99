"""Functions that are marked for profilers: ``@memprofilable``, or ``with memprofilable('name'):``.

While no profiler is connected, a marked function costs one more call, and nothing else happens.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import os
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, Union, overload

import torch


class Listener(Protocol):
    """Who is told of marked functions. Neither method may raise."""

    def begin(self, name: str) -> Any:
        """A marked function begins; what is returned comes back when it ends."""

    def end(self, call: Any) -> None: ...


_listeners: tuple[Listener, ...] = ()
_is_compiling = torch.compiler.is_dynamo_compiling


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


_Markable = TypeVar('_Markable', bound='Union[Callable[..., Any], staticmethod[..., Any], classmethod[Any, ..., Any]]')


@overload
def memprofilable(target: str) -> _Mark: ...
@overload
def memprofilable(target: _Markable) -> _Markable: ...
def memprofilable(target: Union[str, Callable[..., Any]]) -> Any:  # type: ignore[misc] # a classmethod is not callable
    """Mark a function, a method, or a stretch of code, for :class:`MemProfiler`.

    May be nested, recursive, and run on any thread. Of a coroutine or a generator, each step from one wait or value to
    the next is a call. What torch.compile compiles is not told of; the form with a name can't be inside of it.

    >>> @memprofilable
    ... def tokenize(text):
    ...     return text.split()
    >>> with memprofilable('sampling'):
    ...     tokens = tokenize('a b')

    Args:
        target (Callable | str): what is marked, under its ``__name__``; or a name, which gives a context manager that
            is a decorator too.

    Raises:
        TypeError: for a class, or what can't be called.
    """
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(memprofilable(target.__func__))
    if isinstance(target, str):
        return _Mark(target)
    return _marked(target, getattr(target, '__name__', type(target).__name__))


def _marked(function: Callable[..., Any], name: str) -> Any:
    if isinstance(function, type) or not callable(function):
        raise TypeError(f'memprofilable marks functions and methods, not {function!r}; mark those of the class')
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await _awaited(name, function(*args, **kwargs))

    elif inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            generator = function(*args, **kwargs)
            step = generator.asend(None)
            while True:
                try:
                    value = await _awaited(name, step)
                except StopAsyncIteration:
                    return
                try:
                    step = generator.asend((yield value))
                except GeneratorExit:
                    await generator.aclose()
                    raise
                except BaseException as error:
                    step = generator.athrow(error)

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (yield from _steps(name, function(*args, **kwargs)))

    else:

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            # In this order: what is compiled is then not compiled anew as profilers come and go.
            if _is_compiling() or not _listeners:
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


def _steps(name: str, generator: Any) -> Any:
    """Runs a generator, or a coroutine, step by step; between two steps others run."""
    step, argument = generator.send, None
    while True:
        with _told(name):
            try:
                value = step(argument)
            except StopIteration as stop:
                return stop.value
        try:
            argument, step = (yield value), generator.send
        except GeneratorExit:
            generator.close()
            raise
        except BaseException as error:
            argument, step = error, generator.throw


_awaited = types.coroutine(_steps)


_Function = TypeVar('_Function', bound=Callable[..., Any])


class _Mark:
    """A name for a stretch of code, or for a function. One may be entered again while it is entered."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._entered: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar(name, default=())

    def __call__(self, function: _Function) -> _Function:
        return _marked(function, self.name)

    def __enter__(self) -> None:
        told = _told(self.name)
        told.__enter__()
        self._entered.set((*self._entered.get(), told))

    def __exit__(self, *error: Any) -> None:
        *others, told = self._entered.get()
        self._entered.set(tuple(others))
        told.__exit__(*error)
