"""Files of a store, in a temporary folder on this machine: for commands that read a run where it was uploaded.

The store is not trusted: a name that would leave the folder is refused. Credentials come from the environment, fsspec's
config or ``storage_options``. Needs neither Composer nor torch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Optional

from composer_memprof.artifacts.naming.addresses import check_scheme
from composer_memprof.artifacts.reading.containment import inside
from composer_memprof.artifacts.uploading.filesystems import filesystem_of
from composer_memprof.artifacts.writing.failures import only_exceptions
from composer_memprof.messages import log_error, printable
from composer_memprof.redaction import hide_values, one_line

#: Keys under which filesystems give the time of a file's last change.
_TIMES = ('LastModified', 'last_modified', 'mtime', 'updated', 'modified', 'created')


class FetchError(ValueError):
    """Files can't be fetched. The message is one line."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a store.

    Args:
        name (str): relative to the address that was given, with ``/`` between its parts.
        remote (str): its name in the store.
        changed (float, optional): time of its last change, in seconds since 1970; None if the store does not tell.
    """

    name: str
    remote: str
    changed: Optional[float]


class Store:
    """The files below an address, or the one file at it.

    >>> import fsspec
    >>> fsspec.filesystem('memory').pipe('/runs/first/rank0.manifest.jsonl', b'{}')
    >>> store = Store('memory://runs/first')
    >>> [file.name for file in store.files]
    ['rank0.manifest.jsonl']

    Args:
        uri (str): such as ``s3://bucket/runs/first``.
        storage_options (Mapping, optional): for the filesystem, in addition to the environment and fsspec's config.

    Raises:
        FetchError: if the address can't be reached, nothing is there, or a name would leave a folder.
    """

    def __init__(self, uri: str, storage_options: Optional[Mapping[str, Any]] = None) -> None:
        hide_values(storage_options)
        self.uri = uri.rstrip('/')
        try:
            check_scheme(uri, 'the address', to_read=True)
        except ValueError as error:
            raise FetchError(printable(str(error))) from None
        with self._errors_in_one_line():
            self._filesystem, self._root = filesystem_of(uri, storage_options)
            self.is_file = bool(self._filesystem.isfile(self._root))
            found = self._filesystem.find(self._root, detail=True)
            self.files = [self._file(remote, info) for remote, info in sorted(found.items()) if _is_file(remote, info)]
        if not self.files:
            raise FetchError(f'there is nothing at {printable(uri)}')

    def fetch(self, files: Iterable[StoredFile], folder: Path) -> None:
        """Write files into ``folder`` under their names, with the times of the store.

        Raises:
            FetchError: if a name leaves the folder, or a file can't be read or written.
        """
        wanted = self._paths_in(folder, files)
        with self._errors_in_one_line():
            if wanted:
                self._filesystem.get([file.remote for file, _ in wanted], [str(path) for _, path in wanted])
            _set_times(wanted)

    def fetch_empty(self, files: Iterable[StoredFile], folder: Path) -> None:
        """Create empty files under the names of ``files``, with the times of the store. Downloads nothing."""
        wanted = self._paths_in(folder, files)
        with self._errors_in_one_line():
            for _, path in wanted:
                path.touch()
            _set_times(wanted)

    def _paths_in(self, folder: Path, files: Iterable[StoredFile]) -> list[tuple[StoredFile, Path]]:
        wanted = [(file, self.path_in(folder, file)) for file in files]
        with self._errors_in_one_line():
            for _, path in wanted:
                path.parent.mkdir(parents=True, exist_ok=True)
        return wanted

    def path_in(self, folder: Path, file: StoredFile) -> Path:
        """The path to which :meth:`fetch` writes a file.

        Raises:
            FetchError: if the path is outside of ``folder``.
        """
        try:
            path = inside(folder, file.name)
        except (OSError, ValueError):  # also a name that no file can have
            path = folder.resolve()
        if path == folder.resolve():
            raise FetchError(f'{printable(self.uri)} has a file {printable(file.name[:80])!r}, which leaves its folder')
        return path

    def _file(self, remote: str, info: Mapping[str, Any]) -> StoredFile:
        root = self._root.rstrip('/')
        if self.is_file:
            name = remote.rpartition('/')[2]
        elif remote.startswith(f'{root}/'):
            name = remote[len(root) + 1 :]
        else:
            raise ValueError(f'its listing has {remote[:80]!r}, which is elsewhere')
        return StoredFile(name, remote, _changed(info))

    @contextlib.contextmanager
    def _errors_in_one_line(self) -> Iterator[None]:
        try:
            with only_exceptions():
                yield
        except FetchError:
            raise
        except FileNotFoundError:
            raise FetchError(f'there is nothing at {printable(self.uri)}') from None
        except Exception as error:  # a store's client may raise anything
            log_error(f'reading {self.uri} failed')
            raise FetchError(printable(f'{self.uri} cannot be read: {one_line(error)}')) from None


@contextlib.contextmanager
def local_copy(
    uri: str,
    storage_options: Optional[Mapping[str, Any]] = None,
    wanted: Callable[[str], bool] = lambda name: True,
) -> Iterator[Path]:
    """The files of a store in a temporary folder, which is removed at the end of the block; for one file, its path.

    >>> import fsspec
    >>> fsspec.filesystem('memory').pipe({'/runs/two/a.json': b'{}', '/runs/two/a.html': b''})
    >>> with local_copy('memory://runs/two', wanted=lambda name: name.endswith('.json')) as folder:
    ...     [path.name for path in folder.iterdir()]
    ['a.json']

    Args:
        uri (str): the address of a folder or of a file, such as ``s3://bucket/runs/first``.
        storage_options (Mapping, optional): for the filesystem, in addition to the environment and fsspec's config.
        wanted (Callable): takes a name relative to ``uri``, such as ``'torch_traces/rank0.4.summary.json'``, and returns
            whether the file is downloaded. A file that ``uri`` names itself always is. Default: all.

    Raises:
        FetchError: if nothing is there, a file can't be read, or the name of a wanted file leaves the folder.
    """
    store = Store(uri, storage_options)
    with temporary_folder() as folder:
        files = [file for file in store.files if store.is_file or wanted(file.name)]
        store.fetch(files, folder)
        yield store.path_in(folder, files[0]) if store.is_file else folder


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed at the end of the block, but not by a process that is forked inside of the block."""
    folder = Path(tempfile.mkdtemp(prefix='composer-memprof-')).resolve()
    owner = os.getpid()
    try:
        yield folder
    finally:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)


def _set_times(wanted: Iterable[tuple[StoredFile, Path]]) -> None:
    for file, path in wanted:
        if file.changed is not None:
            os.utime(path, (file.changed, file.changed))


def _is_file(remote: str, info: Mapping[str, Any]) -> bool:
    """True for a file; False for an object that stands for a folder, as some stores have."""
    return info.get('type') != 'directory' and not remote.endswith('/')


def _changed(info: Mapping[str, Any]) -> Optional[float]:
    for key in _TIMES:
        value = info.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**33:
            return float(value)
    return None
