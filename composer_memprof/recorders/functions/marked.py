"""Marks functions for profilers: ``@memprofilable``, or ``with memprofilable('name'):``.

While no profiler listens to its name, the mark of a function costs one more call of a function and two checks.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import os
import threading
import types
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, Union, overload

import torch


class MarkListener(Protocol):
    """Called as marked functions begin and end. Neither method may raise."""

    def begin(self, name: str) -> Any:
        """A marked function begins. The result is passed to :meth:`end`."""

    def end(self, call: Any) -> None: ...


class _Name:
    """A name that is marked, once or several times, and who listens to it."""

    __slots__ = ('__weakref__', 'listeners', 'text')

    def __init__(self, text: str) -> None:
        self.text = text
        self.listeners = _listeners


_listeners: tuple[MarkListener, ...] = ()
_names: weakref.WeakValueDictionary[str, _Name] = weakref.WeakValueDictionary()
_lock = threading.RLock()
_is_compiling = torch.compiler.is_dynamo_compiling


def connect(listener: MarkListener) -> None:
    """Call ``listener`` for every marked function from now on, on every thread of this process."""
    global _listeners
    with _lock:
        if listener not in _listeners:
            _listeners = (*_listeners, listener)
            for name in list(_names.values()):
                name.listeners = (*name.listeners, listener)


def disconnect(listener: MarkListener) -> None:
    """Call ``listener`` no more."""
    global _listeners
    with _lock:
        _listeners = _without(_listeners, listener)
        for name in list(_names.values()):
            name.listeners = _without(name.listeners, listener)


def release(listener: MarkListener, text: str) -> None:
    """Call ``listener`` no more for functions marked with this name, so that they are as fast as without it."""
    with _lock:
        name = _names.get(text)
        if name is not None:
            name.listeners = _without(name.listeners, listener)


def _without(listeners: tuple[MarkListener, ...], listener: MarkListener) -> tuple[MarkListener, ...]:
    return tuple(each for each in listeners if each is not listener)


def _name(text: str) -> _Name:
    with _lock:
        name = _names.get(text)
        if name is None:
            name = _names[text] = _Name(text)
        return name


def _disconnect_all() -> None:
    global _listeners, _lock
    _lock = threading.RLock()  # another thread may have held it
    _listeners = ()
    for name in list(_names.values()):
        name.listeners = ()


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
    What runs in a DataLoader's worker processes is not read either.

    A marked asynchronous generator function returns an asynchronous generator of a class of its own, so ``inspect``
    does not know it as one; ask ``inspect.isasyncgenfunction(inspect.unwrap(function))``.

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


def _marked(function: Callable[..., Any], text: str) -> Any:
    if isinstance(function, type) or not callable(function):
        raise TypeError(f'memprofilable marks functions and methods, not {function!r}; mark those of the class')
    name = _name(text)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await _await_in_steps(name, function(*args, **kwargs))

    elif inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return _MarkedAsyncGenerator(name, function(*args, **kwargs))

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (yield from _run_in_steps(name, function(*args, **kwargs)))

    else:

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            # In this order, so that compiled code does not depend on the listeners and is not compiled again.
            if _is_compiling() or not name.listeners:
                return function(*args, **kwargs)
            with _listened_to(name):
                return function(*args, **kwargs)

    return call


@contextmanager
def _listened_to(name: _Name) -> Iterator[None]:
    """Calls the listeners before and after the block. Listeners of the start get the end, even if disconnected."""
    calls = [(listener, listener.begin(name.text)) for listener in name.listeners]
    try:
        yield
    finally:
        for listener, call in reversed(calls):
            listener.end(call)


def _run_in_steps(name: _Name, generator: Any) -> Any:
    """Runs a generator or a coroutine, each step as a call of its own, since other code runs between steps."""
    step, argument = generator.send, None
    while True:
        try:
            if name.listeners:
                with _listened_to(name):
                    value = step(argument)
            else:
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


class _MarkedAsyncGenerator(AsyncGenerator[Any, Any]):
    """An asynchronous generator, each step as calls of their own.

    It is no generator itself, so that the event loop knows one generator and closes it once, also where it was left
    unfinished. Its steps are coroutines, as a generator's own: a task can be made of them, and none is awaited twice.
    """

    def __init__(self, name: _Name, generator: AsyncGenerator[Any, Any]) -> None:
        self._name = name
        self._generator = generator

    async def __anext__(self) -> Any:
        return await _await_in_steps(self._name, self._generator.__anext__())

    async def asend(self, value: Any) -> Any:
        return await _await_in_steps(self._name, self._generator.asend(value))

    async def athrow(self, *error: Any) -> Any:
        return await _await_in_steps(self._name, self._generator.athrow(*error))

    async def aclose(self) -> Any:
        return await _await_in_steps(self._name, self._generator.aclose())

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._generator, attribute)


_Function = TypeVar('_Function', bound=Callable[..., Any])


class _Mark:
    """A context manager and decorator with a name. It is reentrant."""

    def __init__(self, name: str) -> None:
        self._name = _name(name)
        self._entered: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar(name, default=())

    def __call__(self, function: _Function) -> _Function:
        return _marked(function, self._name.text)

    def __enter__(self) -> None:
        block = None
        if self._name.listeners:
            block = _listened_to(self._name)
            block.__enter__()
        self._entered.set((*self._entered.get(), block))

    def __exit__(self, *error: Any) -> None:
        *others, block = self._entered.get()
        self._entered.set(tuple(others))
        if block is not None:
            block.__exit__(*error)
