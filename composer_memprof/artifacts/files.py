"""Whole files: through to the disk, with their digest, under a name that was free."""

import hashlib
import os
import shutil
from pathlib import Path


def seal(path: Path) -> tuple[int, str]:
    """Force a file to the disk; returns its size in bytes and its sha256."""
    with open(path, 'rb') as file:
        os.fsync(file.fileno())
    return digest(path)


def digest(path: Path) -> tuple[int, str]:
    """A file's size in bytes and its sha256, as hexadecimal."""
    sha256 = hashlib.sha256()
    with open(path, 'rb') as file:
        while chunk := file.read(1 << 20):
            sha256.update(chunk)
        return file.tell(), sha256.hexdigest()


def link(source: Path, target: Path) -> None:
    """Give a file a second name; on a disk without links, a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def move_to_new(source: Path, target: Path) -> None:
    """Rename ``source`` to ``target`` in one step, unless that exists.

    Raises:
        FileExistsError: if it does.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # a disk without links: the name is claimed first, then replaced
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        os.replace(source, target)
    else:
        source.unlink()
