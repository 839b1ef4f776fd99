"""Marks functions for profilers: ``@memprofilable``, or ``with memprofilable('name'):``.

While no profiler is connected, a mark costs one more function call and does nothing.
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


class MarkListener(Protocol):
    """Called as marked functions begin and end. Neither method may raise."""

    def begin(self, name: str) -> Any:
        """A marked function begins. The result is passed to :meth:`end`."""

    def end(self, call: Any) -> None: ...


_listeners: tuple[MarkListener, ...] = ()
_is_compiling = torch.compiler.is_dynamo_compiling


def connect(listener: MarkListener) -> None:
    """Call ``listener`` for every marked function from now on, on every thread of this process."""
    global _listeners
    if listener not in _listeners:
        _listeners = (*_listeners, listener)


def disconnect(listener: MarkListener) -> None:
    global _listeners
    _listeners = tuple(each for each in _listeners if each is not listener)


def _disconnect_all() -> None:
    global _listeners
    _listeners = ()


# A forked DataLoader worker inherits the listeners, but must not write into their files.
if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_disconnect_all)


_Markable = TypeVar('_Markable', bound='Union[Callable[..., Any], staticmethod[..., Any], classmethod[Any, ..., Any]]')


@overload
def memprofilable(target: str) -> _Mark: ...
@overload
def memprofilable(target: _Markable) -> _Markable: ...
def memprofilable(target: Union[str, Callable[..., Any]]) -> Any:  # type: ignore[misc] # a classmethod is not callable
    """Mark a function, a method, or a block of code, for :class:`MemProfiler`.

    Marks may be nested and recursive, and may run on any thread. For a coroutine or a generator, each step between two
    waits or values counts as a call. Code under torch.compile is not read, and cannot contain ``with memprofilable``.

    >>> @memprofilable
    ... def tokenize(text):
    ...     return text.split()
    >>> with memprofilable('sampling'):
    ...     tokens = tokenize('a b')

    Args:
        target (Callable | str): the function to mark, under its ``__name__``; or a name, for a context manager that is
            also a decorator.

    Raises:
        TypeError: for a class, or an object that cannot be called.
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
            return await _await_in_steps(name, function(*args, **kwargs))

    elif inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            generator = function(*args, **kwargs)
            step = generator.asend(None)
            while True:
                try:
                    value = await _await_in_steps(name, step)
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
            return (yield from _run_in_steps(name, function(*args, **kwargs)))

    else:

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            # In this order, so that compiled code does not depend on the listeners and is not compiled again.
            if _is_compiling() or not _listeners:
                return function(*args, **kwargs)
            with _listened_to(name):
                return function(*args, **kwargs)

    return call


@contextmanager
def _listened_to(name: str) -> Iterator[None]:
    """Calls the listeners before and after the block. Listeners of the start get the end, even if disconnected."""
    calls = [(listener, listener.begin(name)) for listener in _listeners]
    try:
        yield
    finally:
        for listener, call in reversed(calls):
            listener.end(call)


def _run_in_steps(name: str, generator: Any) -> Any:
    """Runs a generator or a coroutine, each step as a call of its own, since other code runs between steps."""
    step, argument = generator.send, None
    while True:
        with _listened_to(name):
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


_await_in_steps = types.coroutine(_run_in_steps)


_Function = TypeVar('_Function', bound=Callable[..., Any])


class _Mark:
    """A context manager and decorator with a name. It is reentrant."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._entered: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar(name, default=())

    def __call__(self, function: _Function) -> _Function:
        return _marked(function, self.name)

    def __enter__(self) -> None:
        block = _listened_to(self.name)
        block.__enter__()
        self._entered.set((*self._entered.get(), block))

    def __exit__(self, *error: Any) -> None:
        *others, block = self._entered.get()
        self._entered.set(tuple(others))
        block.__exit__(*error)
