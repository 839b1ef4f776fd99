"""Puts a function of our own in the place of one of torch's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch


class NotReplacedError(RuntimeError):
    """This version of torch lacks what was to be replaced; the message names it."""


def replace(module: Any, name: str, replacement: Callable[..., Any]) -> Any:
    """Replace a module's function wherever ``torch`` holds it by now, and return the original.

    Modules that import it later get the replacement from where it is defined.

    Raises:
        NotReplacedError: if the module has no such function.
    """
    original = getattr(module, name, None)
    if original is None:
        raise NotReplacedError(f'simulated ranks: torch {torch.__version__} has no {module.__name__}.{name}')
    setattr(module, name, replacement)
    for of_torch in [loaded for key, loaded in sys.modules.items() if key.startswith('torch')]:
        if getattr(of_torch, '__dict__', {}).get(name) is original:
            setattr(of_torch, name, replacement)
    return original
