"""Starts a function of this package in a new Python process, which shares nothing with this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

#: A variable that another thread sets and deletes at each fork.
_SET_AT_FORKS = 'TOKENIZERS_PARALLELISM'


def environment() -> dict[str, str]:
    """A copy of the environment. Other threads may change the environment during the copy."""
    found = {name: os.environ.get(name) for name in list(os.environ) if name != _SET_AT_FORKS}
    return {name: value for name, value in found.items() if value is not None}


def start_python(function: Callable[..., None], *arguments: int, **options: Any) -> subprocess.Popen[bytes]:
    """Start ``function`` in a new process, which imports from the same folders as this process, except the current one.

    No secret may be in ``arguments``, because other users can read the arguments of a process.

    Args:
        function (Callable): of a module of this package.
        *arguments (int): its arguments.
        **options: further parameters of ``subprocess.Popen``.

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
