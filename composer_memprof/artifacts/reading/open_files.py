"""Finds the processes that have a file open. Needs neither Composer nor torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from composer_memprof.messages import printable

_LOCKS = Path('/proc/locks')


def _may_write(file: Any) -> bool:
    return getattr(file, 'mode', 'a') != 'r'


def writers_of(path: Path) -> list[str]:
    """The processes of this machine that have ``path`` open for writing: ``['process 42 (python)']``.

    Processes of other users can't be seen. Only their names are given, since a command line may hold a credential.
    """
    return _that_have_open(path, psutil.pids(), _may_write)


def pushers_of(path: Path) -> list[str]:
    """The processes of this machine that have ``path`` locked for themselves alone, as a push has a manifest."""
    try:
        # 1: FLOCK  ADVISORY  WRITE 4242 08:01:131 0 EOF
        locks = [line.split() for line in _LOCKS.read_text().splitlines()]
        numbers = [int(words[4]) for words in locks if words[1:4] == ['FLOCK', 'ADVISORY', 'WRITE']]
    except (OSError, ValueError, IndexError):
        return []
    return _that_have_open(path, numbers)


def _that_have_open(path: Path, numbers: Iterable[int], counts: Callable[[Any], bool] = lambda file: True) -> list[str]:
    """Of the processes with these numbers, those that have ``path`` open in a way that ``counts``."""
    wanted, found = str(path.resolve()), []
    for number in numbers:
        try:
            process = psutil.Process(number)
            if any(file.path == wanted and counts(file) for file in process.open_files()):
                found.append(f'process {process.pid} ({printable(process.name())})')
        except (psutil.Error, OSError, ValueError):
            continue
    return found
