"""A run with one known problem: what its report has to say."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from tests.conftest import child_environment
from tests.support.processes import warm_python


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


def in_own_process(module: str, call: str, status: int = 0) -> Callable[[], None]:
    """Calls a function of a module of problems in a process that has trained nothing before, as a user's has not.

    Args:
        status (int): with which it ends.
    """

    def run() -> None:
        command = [sys.executable, '-c', f'from tests.problems import {module}; {module}.{call}']
        done = warm_python.run(
            command, env=child_environment(), capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == status, done.stderr[-2000:]

    return run


def line_of(function: Callable[..., Any], text: str) -> str:
    """The file and the line of a statement, as reports name them."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [first + place for place, line in enumerate(lines) if text in line]
    return f'{PurePath(inspect.getfile(function)).name}:{number} {function.__name__}'
