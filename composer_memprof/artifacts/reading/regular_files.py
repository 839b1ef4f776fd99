"""Opens a file that somebody else named: a regular one alone, because a pipe or a device may have no end."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path


def open_regular(path: Path) -> io.BufferedReader:
    """``path``, open to read, with links followed.

    Raises:
        OSError: if it is no regular file, or can't be opened.
    """
    file = os.open(path, os.O_RDONLY | getattr(os, 'O_NONBLOCK', 0) | getattr(os, 'O_BINARY', 0))
    if stat.S_ISREG(os.fstat(file).st_mode):
        return open(file, 'rb')
    os.close(file)
    raise OSError(errno.EINVAL, 'it is not a regular file', str(path))
