"""Starts a function of this package in a Python process of its own, which begins with nothing of this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any


def start_python(function: Callable[[], None], *, stdout: int = subprocess.DEVNULL, **options: Any) -> subprocess.Popen:
    """Start ``function`` with a pipe as its stdin. What may be secret goes there: others can read a process's arguments.

    Args:
        function (Callable): of a module of this package.
        stdout (int): as for ``subprocess.Popen``. Default: nothing of it is kept.
        **options: for ``subprocess.Popen``.

    Raises:
        OSError: if no process can be started.
    """
    code = f'from {function.__module__} import {function.__name__}; {function.__name__}()'
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, '-c', code], stdin=subprocess.PIPE, stdout=stdout, env=environment, **options
    )
