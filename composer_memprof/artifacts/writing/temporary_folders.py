"""Temporary folders of commands. A command that is killed leaves its folder behind; the next command removes it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from composer_memprof.artifacts.reading.locks import fcntl, try_lock

_PREFIX = 'composer-memprof.'
#: Seconds for which a folder is left alone, because its process may be about to lock it.
_YOUNG_S = 60.0


@contextlib.contextmanager
def temporary_folder(what_for: str) -> Iterator[Path]:
    """A folder for as long as the block runs. It is locked, which shows other processes that it is in use.

    >>> with temporary_folder('doctest') as folder:
    ...     folder.is_dir()
    True
    """
    _remove_left()
    with tempfile.TemporaryDirectory(prefix=f'{_PREFIX}{what_for}-') as name:
        descriptor = os.open(name, os.O_RDONLY)
        try:
            try_lock(descriptor, shared=False)
            yield Path(name)
        finally:
            os.close(descriptor)


def _remove_left() -> None:
    """Remove this user's folders that nobody has locked. Without locks nobody can tell which these are."""
    if fcntl is None:
        return
    for folder in Path(tempfile.gettempdir()).glob(f'{_PREFIX}*-*'):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            is_young = time.time() - status.st_mtime < _YOUNG_S
            if is_young or status.st_uid != os.getuid() or folder.is_symlink():
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if try_lock(descriptor, shared=False) is True:
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
