"""Functions that take the place of torch's own, and that ``torch.compile`` and TorchScript treat as if they were not there.

Checked with torch 2.7.0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def in_place_of(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """What calls ``function(original, arguments, keywords)``, and the original alone where it is traced or scripted."""

    @functools.wraps(original)
    def seen(*arguments: Any, **keywords: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*arguments, **keywords)
        return function(original, arguments, keywords)

    operator = torch.jit._builtins._find_builtin(original)
    if operator is not None:
        torch.jit._builtins._register_builtin(seen, operator)
    return seen
