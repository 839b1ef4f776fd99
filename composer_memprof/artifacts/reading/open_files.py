"""Finds the processes that have a file open. Needs neither Composer nor torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil

from composer_memprof.messages import printable


def _may_write(file: Any) -> bool:
    return getattr(file, 'mode', 'a') != 'r'


def writers_of(path: Path) -> list[str]:
    """The processes of this machine that have ``path`` open for writing: ``['process 42 (python)']``.

    Processes of other users can't be seen. Only their names are given, since a command line may hold a credential.
    """
    wanted, found = str(path.resolve()), []
    for process in psutil.process_iter():
        try:
            if any(file.path == wanted and _may_write(file) for file in process.open_files()):
                found.append(f'process {process.pid} ({printable(process.name())})')
        except (psutil.Error, OSError):
            continue
    return found
