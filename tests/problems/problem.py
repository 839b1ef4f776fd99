"""A run with one known problem: what its report has to say."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any


@dataclass(frozen=True)
class Problem:
    """A run with a known cause.

    Args:
        run (Callable): trains in the current folder.
        says (tuple[str, ...]): all of these are in the first sentence.
        change (str): is in the first change; ``''`` if nothing can be changed, as after an exception.
        bytes (int): that the first sentence says, within a tenth; 0 if the cause is not about memory.
    """

    run: Callable[[], Any]
    says: tuple[str, ...]
    change: str
    bytes: int = 0


def line_of(function: Callable[..., Any], text: str) -> str:
    """The file and the line of a statement, as reports name them."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [first + place for place, line in enumerate(lines) if text in line]
    return f'{PurePath(inspect.getfile(function)).name}:{number} {function.__name__}'
