"""Temporary files: an artifact is written under a hidden name, and gets its own name once it is whole.

A process that is killed leaves its temporary file behind. The manifest lists that file as ``open`` from its first byte,
under a kind that ends with ``.unfinished``, so that it can be found and removed. Imports neither Composer nor torch,
because ``push`` must start fast.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Optional

from composer_memprof.artifacts.reading.manifest import append_line, is_unfinished, read_manifest

#: The names of temporary files. No other file is ever removed, whatever a manifest says.
_NAME = re.compile(r'\.[a-z_]+[a-z_.]*\.([0-9a-f]{8})\.(\d+)\.\d+\.tmp')
#: Seconds without a change after which a file that another machine wrote counts as abandoned.
_AT_REST_S = 3600.0


def temporary_name(kind: str) -> str:
    """A name that no process has used before."""
    return f'.{kind}.{_this_machine()}.{os.getpid()}.{time.monotonic_ns()}.tmp'


@contextlib.contextmanager
def replaced_whole(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path``, which takes its place once the block has written the whole of it.

    If the block fails, what was at ``path`` stays. A link at ``path`` is replaced; what it leads to is left alone.
    """
    temporary = path.with_name(temporary_name('page'))
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _this_machine() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def remove_temporary(path: Path) -> None:
    """Remove a temporary file, and the files that its writer or a codec has made next to it."""
    path.unlink(missing_ok=True)  # needs no other file to be opened
    for name in os.listdir(path.parent):
        if name.startswith(f'{path.stem}.'):
            (path.parent / name).unlink(missing_ok=True)


def clear_unfinished(manifest: Path, of_process: Optional[int] = None) -> list[Path]:
    """Remove temporary files that ``manifest`` lists and whose processes have ended; returns their paths.

    Args:
        manifest (Path): of a run that has ended, unless ``of_process`` is given.
        of_process (int, optional): remove only the files of this process, which has ended on this machine.
    """
    cleared = []
    for entry in read_manifest(manifest):
        name = _NAME.fullmatch(entry.path)
        if name is None or not is_unfinished(entry) or entry.status != 'open':
            continue
        path, machine, pid = manifest.parent / entry.path, name[1], int(name[2])
        if (pid != of_process) if of_process is not None else _may_be_written(path, machine, pid):
            continue
        remove_temporary(path)
        append_line(manifest, replace(entry, status='removed'), to_disk=False)
        cleared.append(path)
    return cleared


def _may_be_written(path: Path, machine: str, pid: int) -> bool:
    """True if the process that writes the file may be alive. On filesystems with locks, the manifest's lock is exact."""
    if machine != _this_machine():
        with contextlib.suppress(FileNotFoundError):
            return time.time() - path.stat().st_mtime < _AT_REST_S
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
