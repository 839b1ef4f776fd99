"""Properties that are computed once, and take no lock for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Optional, TypeVar, Union, overload

from typing_extensions import Self

_Value = TypeVar('_Value')


class computed_once(Generic[_Value]):  # noqa: N801 - a decorator, as the one that it replaces
    """As ``functools.cached_property``, which before Python 3.12 takes one lock for all objects of a class.

    A child that is forked while another thread computes the property of any object would wait for that lock for ever.

    Args:
        function (Callable): computes the value from the object.
    """

    def __init__(self, function: Callable[[Any], _Value]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: Optional[type] = None) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: Optional[type] = None) -> _Value: ...

    def __get__(self, instance: Optional[object], owner: Optional[type] = None) -> Union[Self, _Value]:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._function(instance)
        return value
