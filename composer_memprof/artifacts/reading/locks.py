"""Locks of manifests: a run that writes one holds a shared lock, and a push an exclusive one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

try:
    import fcntl
except ImportError:  # not on this platform: nobody can tell by the lock that a run is alive
    fcntl = None  # type: ignore[assignment]


def try_lock(file: int, *, shared: bool) -> Optional[bool]:
    """Lock an open file; False if another process has it locked, None on a filesystem without locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def unlock(file: int) -> None:
    """Unlock an open file, for every process that has inherited it too."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Optional[bool]]:
    """Lock a manifest for oneself alone while the block runs. Yields False if a run or a push has it locked.

    Yields None on a filesystem without locks.
    """
    file = os.open(path, os.O_RDONLY | getattr(os, 'O_NOFOLLOW', 0))
    try:
        yield try_lock(file, shared=False)
    finally:
        unlock(file)
        os.close(file)
