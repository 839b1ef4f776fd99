"""Hides from the package what Python has on Linux and not on macOS or Windows. Import this before the package.

It can't show what those systems do otherwise: how they name and lock files, start processes and end them.
"""

from __future__ import annotations

import builtins
import ctypes
import io
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

# Libraries, which may use what is hidden.
import composer  # noqa: F401
import torch.profiler  # noqa: F401
import typer.testing  # noqa: F401

_MODULES = {'win32': ('fcntl', 'grp', 'pwd', 'resource', 'termios'), 'darwin': ()}
_NEITHER = (*('sched_getaffinity', 'sched_getscheduler', 'sched_param', 'sched_setscheduler'), 'posix_fadvise')
_NOT_WINDOWS = (
    *('fork', 'forkpty', 'getpgid', 'getpriority', 'getuid', 'geteuid', 'killpg', 'mkfifo', 'nice', 'pread', 'pwrite'),
    *('register_at_fork', 'setpriority', 'setsid', 'statvfs', 'sysconf', 'fchmod', 'waitstatus_to_exitcode'),
    *('O_CLOEXEC', 'O_DIRECTORY', 'O_NOFOLLOW', 'O_NONBLOCK', 'WNOHANG', 'WIFSIGNALED'),
)
_SIGNALS = ('SIGALRM', 'SIGCHLD', 'SIGHUP', 'SIGKILL', 'SIGQUIT', 'alarm', 'pthread_sigmask')


def _is_ours() -> bool:
    """True if the package asks, directly or by way of ``pathlib``."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get('__name__') in ('pathlib', __name__):
        frame = frame.f_back
    return str(frame.f_globals.get('__name__')).startswith('composer_memprof')


def _without_proc(function: Callable[..., Any]) -> Callable[..., Any]:
    def open_(path: Any, *arguments: Any, **more: Any) -> Any:
        if str(path).startswith(('/proc', '/sys', '/dev/shm')) and _is_ours():
            raise FileNotFoundError(2, 'hidden', str(path))
        return function(path, *arguments, **more)

    return open_


class _Module:
    """A module as the package sees it: without some names, and with other values."""

    def __init__(self, module: Any, hidden: tuple[str, ...] = (), **values: str) -> None:
        self.__dict__.update(_module=module, _hidden=frozenset(hidden), _values=values)

    def __getattr__(self, name: str) -> Any:
        if name in self._hidden and _is_ours():
            raise AttributeError(f'module {self._module.__name__!r} has no attribute {name!r}')
        return self._values[name] if name in self._values and _is_ours() else getattr(self._module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)


def pretend(platform: str) -> None:
    """From now on, modules of the package that are imported see ``platform``: ``win32`` or ``darwin``."""
    is_windows = platform == 'win32'
    modules: dict[str, Any] = dict.fromkeys(_MODULES[platform])
    modules['sys'] = _Module(sys, platform=platform)
    modules['os'] = _Module(
        os, (*_NEITHER, *(_NOT_WINDOWS if is_windows else ())), name='nt' if is_windows else 'posix'
    )
    if is_windows:
        modules['signal'] = _Module(signal, _SIGNALS)
        modules['select'] = _Module(select, ('poll',))
        modules['ctypes'] = _Module(ctypes, ('CDLL',))  # which takes no None there
    builtins.open = io.open = _without_proc(io.open)
    os.open = _without_proc(os.open)
    sys.modules.update(modules)
