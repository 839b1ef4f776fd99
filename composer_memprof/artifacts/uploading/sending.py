"""Sends one file to a store, in which it gets its name once it is whole."""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
import socket
from pathlib import Path
from typing import Any, Literal

import fsspec.implementations.local
from fsspec.spec import AbstractFileSystem

from composer_memprof.artifacts.uploading.filesystems import call
from composer_memprof.artifacts.uploading.limits import SentBytes, Throttle
from composer_memprof.artifacts.writing.disk import move_to_new

Mode = Literal['create', 'overwrite']


def send_file(
    filesystem: Any, path: Path, target: str, mode: Mode, throttle: Throttle, *, may_exist: bool = False
) -> None:
    """Send ``path`` to ``target``.

    Args:
        filesystem (AbstractFileSystem): of the store.
        path (Path): a whole file.
        target (str): the name of the file in the filesystem.
        mode (str): ``create`` (on condition that there is no such file, if the store knows conditions) or ``overwrite``.
        throttle (Throttle): of this process.
        may_exist (bool): nobody can tell whether there is such a file.

    Raises:
        FileExistsError: if there is a file of that name.
        PermissionError: if there may be such a file, and the store knows no condition.
        Exception: any error of the store's client.
    """
    if isinstance(filesystem, fsspec.implementations.local.LocalFileSystem):
        _put_here(path, Path(target), mode)
        return
    with throttle.turn():
        if not filesystem.async_impl:
            filesystem.makedirs(filesystem._parent(target), exist_ok=True)
        if filesystem.async_impl or not _renames(filesystem):
            _send(filesystem, path, target, mode, throttle, may_exist=may_exist)
        else:
            _send_and_rename(filesystem, path, target, mode, throttle, may_exist=may_exist)


def _send(filesystem: Any, path: Path, target: str, mode: Mode, throttle: Throttle, *, may_exist: bool) -> None:
    settings = {'chunksize': throttle.part_size, 'max_concurrency': throttle.parts_at_once}
    taken = inspect.signature(getattr(filesystem, '_put_file', filesystem.put_file)).parameters
    more: dict[str, Any] = {name: value for name, value in settings.items() if name in taken}
    more |= {'callback': SentBytes(throttle), 'timeout': throttle.seconds_for(path.stat().st_size)}
    if may_exist and 'mode' not in taken:  # some clients ignore an unknown mode
        raise _might_replace(target)
    try:
        call(filesystem, 'put_file', str(path), target, mode=mode, **more)
    except (NotImplementedError, TypeError):  # the store knows no condition; the caller found the name free
        if may_exist:
            raise _might_replace(target) from None
        call(filesystem, 'put_file', str(path), target, **{**more, 'callback': SentBytes(throttle)})


def _renames(filesystem: Any) -> bool:
    """True if the filesystem has real folders, in which a file can be renamed. Other filesystems copy the file."""
    return type(filesystem).mv is not AbstractFileSystem.mv


def _send_and_rename(
    filesystem: Any, path: Path, target: str, mode: Mode, throttle: Throttle, *, may_exist: bool
) -> None:
    """Send a file under another name and rename it: a store with real folders keeps a part of a file after a broken connection."""
    if may_exist:
        raise _might_replace(target)
    partial = f'{filesystem._parent(target)}/{_partial_name(path, target)}'
    filesystem.put_file(str(path), partial, callback=SentBytes(throttle))
    if mode == 'overwrite' and filesystem.exists(
        target
    ):  # some filesystems do not rename to an existing file, not all with an error
        filesystem.rm_file(target)
    filesystem.mv(partial, target)
    filesystem.invalidate_cache(filesystem._parent(target))
    if filesystem.info(target).get('size') not in (None, path.stat().st_size):
        raise OSError(f'{target} has another size than the file')


def _might_replace(target: str) -> PermissionError:
    return PermissionError(f'{target} cannot be read, so an upload might replace a file')


def _put_here(path: Path, target: Path, mode: Mode) -> None:
    """Copy a file to a folder. The copy gets its name once it is whole, so that an interrupted copy never has it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / _partial_name(path, str(target))
    try:
        shutil.copyfile(path, partial)
        if mode == 'create':
            move_to_new(partial, target)
        else:
            os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _partial_name(path: Path, target: str) -> str:
    """The name of a copy that is not whole. It is short, since the target's name may be as long as its folder allows.

    All attempts of a process use the same name, so that an attempt replaces what an interrupted one has left.
    """
    copied = f'{socket.gethostname()}:{path.absolute()}:{target}'
    return f'.memprof.{hashlib.sha256(copied.encode()).hexdigest()[:16]}.{os.getpid()}.part'
