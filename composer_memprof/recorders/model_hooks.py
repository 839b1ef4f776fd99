"""Hooks that are not copied or saved with the model that they are on."""

from __future__ import annotations

import functools
from typing import Any


class Hook(functools.partial):
    """A hook on a model. A copy or a pickle of the model has :func:`no_hook` in its place."""

    def __deepcopy__(self, memo: Any) -> Any:
        del memo  # unused
        return no_hook

    def __reduce__(self) -> Any:
        return _no_hook, ()


def no_hook(*args: Any, **kwargs: Any) -> None:
    """Does nothing."""


def _no_hook() -> Any:
    return no_hook
