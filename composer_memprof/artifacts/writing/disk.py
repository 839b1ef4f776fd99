"""Operations on whole files: sync to disk, digest, rename without overwriting."""

import errno
import hashlib
import os
import shutil
from pathlib import Path


def sync_and_digest(path: Path) -> tuple[int, str]:
    """Force a file to the disk; returns its size in bytes and its sha256."""
    with open(path, 'rb') as file:
        sync(file.fileno())
    return digest(path)


def sync(file: int) -> None:
    """Wait until the disk has what was written to an open file. Some network filesystems do not know of that."""
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise


def digest(path: Path) -> tuple[int, str]:
    """A file's size in bytes and its sha256, in hexadecimal."""
    sha256 = hashlib.sha256()
    with open(path, 'rb') as file:
        while chunk := file.read(1 << 20):
            sha256.update(chunk)
        return file.tell(), sha256.hexdigest()


def link(source: Path, target: Path) -> None:
    """Give a file a second name; copy it on a filesystem without hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def move_to_new(source: Path, target: Path) -> None:
    """Rename ``source`` to ``target`` in one step.

    Raises:
        FileExistsError: if ``target`` exists.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # no hard links on this filesystem: reserve the name first, then replace the empty file
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        try:
            os.replace(source, target)
        except OSError:
            target.unlink()
            raise
    else:
        source.unlink()
