"""Destinations of uploads: a store that has an address, or Composer's logger."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Optional, Protocol

import tenacity

from composer_memprof.artifacts.naming.addresses import is_address
from composer_memprof.artifacts.naming.numbering import before_suffix, counted
from composer_memprof.artifacts.uploading.filesystems import filesystem_of
from composer_memprof.artifacts.uploading.limits import throttle_of_process
from composer_memprof.artifacts.uploading.sending import send_file
from composer_memprof.artifacts.uploading.sent import UNREADABLE, Comparison, compare, find_object, is_copy
from composer_memprof.redaction import hide_values

#: Errors after which another attempt is useless.
_NOT_RETRIED = (
    FileExistsError,
    FileNotFoundError,
    PermissionError,
    NotImplementedError,
    ValueError,
    ImportError,
    RuntimeError,
)
_ATTEMPTS = 8


@dataclass(frozen=True)
class Sent:
    """The destination of an uploaded file.

    Args:
        name (str): the address of the file, or its name in the destination.
        status (str): ``uploaded``, or ``handed_over`` to a logger that uploads it later.
    """

    name: str
    status: Literal['uploaded', 'handed_over'] = 'uploaded'


class Destination(Protocol):
    """Takes complete files. Called on background threads, several at once; the caller handles errors."""

    def accepts_files(self) -> bool:
        """True if files can be uploaded."""

    def address_of(self, name: str) -> str:
        """The address of the store's file ``name``, which :meth:`upload` accepts too; ``name`` if it has no address."""

    def known_address(self, name: str) -> str:
        """As :meth:`address_of`, in any process: opens no store. Returns ``name`` if its store was not opened yet."""

    def upload(self, path: Path, name: str) -> Sent:
        """Upload ``path`` as ``name``, or the next name that is free. An object with the same content counts as uploaded."""

    def has(self, name: str, size: int) -> Optional[bool]:
        """True if a file that was handed over as ``name`` is in the store; None if that can't be found out."""

    def compare(self, path: Path, name: str) -> Comparison:
        """Ask whether the store's file ``name`` is a copy of ``path``."""


class FsspecDestination:
    """A store that has an address, through its filesystem.

    Args:
        storage_options (Mapping, optional): for the filesystem, in addition to the environment and fsspec's config.
        overwrite (bool): replace a file of the same name; otherwise a new file gets ``.2``, ``.3``, …

    Raises:
        ValueError: if the environment's limit on uploads is not allowed.
    """

    def __init__(self, storage_options: Optional[Mapping[str, Any]] = None, overwrite: bool = False) -> None:
        self.storage_options = dict(storage_options or {})
        hide_values(self.storage_options)
        self.overwrite = overwrite
        self._throttle = throttle_of_process()

    def accepts_files(self) -> bool:
        return True

    def address_of(self, name: str) -> str:
        return name

    known_address = address_of

    def has(self, name: str, size: int) -> Optional[bool]:
        found = find_object(*filesystem_of(name, self.storage_options))
        return found is not None and found.get('size') == size

    def compare(self, path: Path, name: str) -> Comparison:
        filesystem, target = filesystem_of(name, self.storage_options)
        return compare(filesystem, target, path, self._throttle.part_size)

    def upload(self, path: Path, name: str) -> Sent:
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(_ATTEMPTS),
            wait=tenacity.wait_random_exponential(multiplier=0.5, max=30),
            retry=tenacity.retry_if_not_exception_type(_NOT_RETRIED),
            reraise=True,
        )
        return Sent(retrying(self._upload_once, path, name))

    def _upload_once(self, path: Path, name: str) -> str:
        filesystem, target = filesystem_of(name, self.storage_options)
        try:
            return self._upload_to(filesystem, path, name, target)
        except Exception:
            if not filesystem.async_impl:  # fsspec keeps the filesystem, with a connection that may be broken
                type(filesystem).clear_instance_cache()
            raise

    def _upload_to(self, filesystem: Any, path: Path, name: str, target: str) -> str:
        if self.overwrite:
            send_file(filesystem, path, target, 'overwrite', self._throttle)
            return name
        for number in itertools.count(1):
            candidate = before_suffix(target, counted(number))
            if self._create(filesystem, path, candidate):
                return before_suffix(name, counted(number))
        raise AssertionError('a name is found or an error raised')

    def _create(self, filesystem: Any, path: Path, target: str) -> bool:
        """Upload to ``target``. False if there is another object of that name."""
        found = find_object(filesystem, target)
        if not found:
            try:
                send_file(filesystem, path, target, 'create', self._throttle, may_exist=found == UNREADABLE)
                return True
            except (FileExistsError, FileNotFoundError):
                # Somebody has just created the object. Or it is complete, but the answer was lost and the request repeated:
                # S3 then no longer knows that multipart upload.
                found = find_object(filesystem, target)
                if found is None:
                    raise
        return is_copy(filesystem, target, found, path, self._throttle.part_size)


@dataclass(frozen=True)
class _LoggerStore:
    """The store of a destination of the logger: Composer's object store, and the function that names its objects."""

    store: Any
    object_name: Any

    @property
    def knows_sizes(self) -> bool:
        """False for a Databricks volume: Composer's store gives the same number for each of its files."""
        return type(self.store).__name__ != 'UCObjectStore'

    def size_of(self, name: str) -> Optional[int]:
        """The size of an object in bytes; None if there is no such object."""
        try:
            return self.store.get_object_size(self.object_name(name))
        except FileNotFoundError:
            return None

    def address_of(self, name: str) -> Optional[str]:
        """The address of an object, without credentials; None if fsspec does not know the store."""
        address = str(self.store.get_uri(self.object_name(name)))
        return address if is_address(address) else None


class LoggerDestination:
    """The destinations of Composer's logger that accept files. They upload later, in processes of their own."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self._lock = threading.Lock()  # Composer calls its loggers from one thread
        self._used: set[str] = set()
        #: The names of files by their addresses.
        self._names: dict[str, str] = {}

    def accepts_files(self) -> bool:
        return bool(self._logger.has_file_upload_destination())

    def address_of(self, name: str) -> str:
        address = self._address_in(self._stores(), name)
        if address is None:
            return name
        self._names[address] = name
        return address

    def known_address(self, name: str) -> str:
        return name if is_address(name) else self._address_in(self._stores(only_open=True), name) or name

    @staticmethod
    def _address_in(stores: Iterable[_LoggerStore], name: str) -> Optional[str]:
        return next(filter(None, (store.address_of(name) for store in stores)), None)

    def upload(self, path: Path, name: str) -> Sent:
        with self._lock:
            candidate = self._free_name(self._names.get(name, name))
            self._used.add(candidate)
            # Composer formats both names. Without `overwrite` it raises into training if the name exists.
            self._logger.upload_file(
                remote_file_name=_escape_braces(candidate),
                file_path=_escape_braces(str(path)),
                overwrite=True,
            )
        return Sent(self.address_of(candidate), 'handed_over')

    def has(self, name: str, size: int) -> Optional[bool]:
        stores = list(self._stores())
        if not stores or not all(store.knows_sizes for store in stores):
            return None
        return all(store.size_of(self._names.get(name, name)) == size for store in stores)

    def compare(self, path: Path, name: str) -> Comparison:
        size = path.stat().st_size
        return Comparison(self.has(name, size), f'the store has no {size} bytes of it')

    def _free_name(self, name: str) -> str:
        stores = list(self._stores())
        for number in itertools.count(1):
            candidate = before_suffix(name, counted(number))
            if candidate not in self._used and all(store.size_of(candidate) is None for store in stores):
                return candidate
        raise AssertionError('a name is found or an error raised')

    def _stores(self, *, only_open: bool = False) -> Iterator[_LoggerStore]:
        """The stores that can be asked for their objects: those of Composer's RemoteUploaderDownloader.

        Opens them, unless ``only_open``. Composer opens them on rank 0, at INIT.
        """
        for destination in self._logger.destinations:
            store = getattr(destination, '_remote_backend' if only_open else 'remote_backend', None)
            if store is not None and destination.can_upload_files():
                yield _LoggerStore(store, getattr(destination, '_remote_file_name', str))


def _escape_braces(name: str) -> str:
    return name.replace('{', '{{').replace('}', '}}')
