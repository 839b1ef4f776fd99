"""Starts a function of this package in a Python process of its own, which begins with nothing of this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

#: Set and deleted again whenever a child is forked, on another thread.
_SET_AT_FORKS = 'TOKENIZERS_PARALLELISM'


def environment() -> dict[str, str]:
    """The environment as it is now. Other threads may change it meanwhile."""
    found = {name: os.environ.get(name) for name in list(os.environ) if name != _SET_AT_FORKS}
    return {name: value for name, value in found.items() if value is not None}


def start_python(function: Callable[..., None], *arguments: int, **options: Any) -> subprocess.Popen[bytes]:
    """Start ``function``. It finds modules where this process does, but none in the current folder.

    Nothing secret may be in ``arguments``, because others can read those of a process.

    Args:
        function (Callable): of a module of this package.
        *arguments (int): for it.
        **options: for ``subprocess.Popen``.

    Raises:
        OSError: if no process can be started.
    """
    paths = [path for path in sys.path if path]
    call = f'{function.__name__}({", ".join(map(str, arguments))})'
    code = f'import sys; sys.path[:] = {paths!r}; from {function.__module__} import {function.__name__}; {call}'
    flags = ['-B'] if sys.dont_write_bytecode else []
    # An iterator, because VizTracer's patch, which traces new processes, takes sequences only.
    command: Any = iter([sys.executable, *flags, '-I', '-c', code])
    return subprocess.Popen(command, env=environment(), **options)
