"""Hooks that stay behind when the model they are on is copied or saved while they are in place."""

from __future__ import annotations

import functools
from typing import Any


class Hook(functools.partial):
    """A hook of ours, called as ``hook(module, ...)``. A copy of the model has in its place one that does nothing."""

    def __deepcopy__(self, memo: Any) -> Any:
        del memo  # unused
        return no_hook

    def __reduce__(self) -> Any:
        return _no_hook, ()


def no_hook(*args: Any, **kwargs: Any) -> None:
    """What is in place of a hook in a model that was copied."""


def _no_hook() -> Any:
    return no_hook
