"""Where artifacts are uploaded: to a store that has an address, or through Composer's logger."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional, Protocol

import fsspec.implementations.local
import tenacity

from composer_memprof.artifacts.addresses import open_store
from composer_memprof.artifacts.files import move_to_new
from composer_memprof.artifacts.numbering import before_suffix, counted
from composer_memprof.redaction import hide_values

#: Errors after which another attempt is useless.
_NOT_RETRIED = (FileExistsError, FileNotFoundError, PermissionError, NotImplementedError, ValueError, ImportError)
_ATTEMPTS = 4


class Destination(Protocol):
    """Takes complete files. Called on a background thread; the caller handles errors."""

    def accepts_files(self) -> bool:
        """True if files can be uploaded."""

    def upload(self, path: Path, name: str) -> str:
        """Upload ``path`` as ``name``, or the next name that is free, and return that name."""


class FsspecDestination:
    """A store that has an address, through its filesystem.

    Args:
        storage_options (Mapping, optional): for the filesystem, in addition to the environment and fsspec's config.
        overwrite (bool): replace a file of the same name; otherwise a new file gets ``.2``, ``.3``, …
    """

    def __init__(self, storage_options: Optional[Mapping[str, Any]] = None, overwrite: bool = False) -> None:
        self.storage_options = dict(storage_options or {})
        hide_values(self.storage_options)
        self.overwrite = overwrite

    def accepts_files(self) -> bool:
        return True

    def upload(self, path: Path, name: str) -> str:
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(_ATTEMPTS),
            wait=tenacity.wait_random_exponential(multiplier=0.5, max=8),
            retry=tenacity.retry_if_not_exception_type(_NOT_RETRIED),
            reraise=True,
        )
        return retrying(self._upload_once, path, name)

    def _upload_once(self, path: Path, name: str) -> str:
        filesystem, _ = open_store(name, self.storage_options)
        if self.overwrite:
            _put(filesystem, path, name, mode='overwrite')
            return name
        number = 1
        while True:
            candidate = before_suffix(name, counted(number))
            try:
                if not filesystem.exists(candidate):
                    _put(filesystem, path, candidate, mode='create')
                    return candidate
            except FileExistsError:  # another process has just created it
                pass
            number += 1


def _put(filesystem: Any, path: Path, name: str, mode: str) -> None:
    target = filesystem._strip_protocol(name)
    if isinstance(filesystem, fsspec.implementations.local.LocalFileSystem):
        # Renamed once it is whole, so that an interrupted copy never has the file's name.
        filesystem.makedirs(filesystem._parent(target), exist_ok=True)
        partial = Path(f'{target}.{os.getpid()}.{threading.get_ident()}.part')
        try:
            shutil.copyfile(path, partial)
            if mode == 'create':
                move_to_new(partial, Path(target))
            else:
                os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
        return
    try:
        filesystem.put_file(str(path), target, mode=mode)
    except (NotImplementedError, TypeError):  # no exclusive writes here; the caller has checked that the name is free
        filesystem.put_file(str(path), target)


class LoggerDestination:
    """The destinations of Composer's logger that take files."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self._used: set[str] = set()

    def accepts_files(self) -> bool:
        return bool(self._logger.has_file_upload_destination())

    def upload(self, path: Path, name: str) -> str:
        number = 1
        while (candidate := before_suffix(name, counted(number))) in self._used or self._is_stored(candidate):
            number += 1
        self._used.add(candidate)
        # Composer formats both names. Without `overwrite` it raises into training if the name exists.
        self._logger.upload_file(
            remote_file_name=_escape_braces(candidate),
            file_path=_escape_braces(str(path)),
            overwrite=True,
        )
        return candidate

    def _is_stored(self, name: str) -> bool:
        """True if a destination has an object of this name, from an earlier run, and can tell."""
        for destination in self._logger.destinations:
            backend = getattr(destination, 'remote_backend', None)
            if backend is None or not destination.can_upload_files():
                continue
            remote_name = getattr(destination, '_remote_file_name', str)(name)
            try:
                backend.get_object_size(remote_name)
            except FileNotFoundError:
                continue
            return True
        return False


def _escape_braces(name: str) -> str:
    return name.replace('{', '{{').replace('}', '}}')
