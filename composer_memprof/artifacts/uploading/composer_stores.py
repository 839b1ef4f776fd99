"""Composer's own object stores behind fsspec's interface, for the addresses that fsspec does not serve.

They have no storage options: Composer reads their credentials from the environment.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from fsspec.spec import AbstractFileSystem

#: The beginning of the address of a Databricks volume, which Composer writes with one slash.
VOLUMES = 'dbfs:/Volumes/'
#: Number of parts in the path of a volume: Volumes/<catalog>/<schema>/<volume>.
_PARTS_OF_VOLUME = 4


@dataclass(frozen=True)
class ComposerStore:
    """The needs of one of Composer's stores: a module, the package that has it, and the source of its credentials."""

    module: str
    package: str
    credentials: str

    def is_installed(self) -> bool:
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:  # the package that should have the module is missing
            return False


#: Composer's stores by the scheme of their addresses.
COMPOSER_STORES: Mapping[str, ComposerStore] = {
    'azure': ComposerStore('libcloud', 'apache-libcloud', 'AZURE_ACCOUNT_NAME and AZURE_ACCOUNT_ACCESS_KEY'),
    'dbfs': ComposerStore('databricks.sdk', 'databricks-sdk', 'DATABRICKS_HOST and DATABRICKS_TOKEN'),
    'oci': ComposerStore('oci', 'oci', "OCI's config file (OCI_CONFIG_FILE, or ~/.oci/config)"),
}


class ComposerStoreFileSystem(AbstractFileSystem):
    """The objects of one of Composer's stores. A path is ``bucket/key``, in a volume ``Volumes/…/key``.

    Args:
        scheme (str): of :data:`COMPOSER_STORES`.
    """

    protocol = tuple(COMPOSER_STORES)
    cachable = False

    def __init__(self, scheme: str) -> None:
        super().__init__()
        self._scheme = scheme
        self._stores: dict[str, Any] = {}
        self._lock = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix('dbfs:/').lstrip('/') if path.startswith(VOLUMES) else super()._strip_protocol(path)

    def exists(self, path: str, **options: Any) -> bool:
        """True if the store gives a size for the object, as Composer asks."""
        store, key = self._find(path)
        try:
            store.get_object_size(key)
        except FileNotFoundError:
            return False
        return True

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Name, size and type of an object. In a volume the size is None: Composer gives one number for all files there."""
        store, key = self._find(path)
        size: Optional[int] = store.get_object_size(key)
        return {
            'name': self._strip_protocol(path),
            'size': None if self._scheme == 'dbfs' else size,
            'type': 'file',
        }

    def find(self, path: str, maxdepth: Optional[int] = None, withdirs: bool = False, **options: Any) -> Any:
        """All objects below ``path``, without their sizes."""
        store, prefix = self._find(path)
        root = self._root(self._strip_protocol(path))
        keys = [key.removeprefix(f'/{root}/') for key in store.list_objects(prefix or None)]
        names = [f'{root}/{key}' for key in sorted(keys)]
        if options.get('detail'):
            return {name: {'name': name, 'size': None, 'type': 'file'} for name in names}
        return names

    def isfile(self, path: str) -> bool:
        return bool(self._find(path)[1]) and self.exists(path)

    def put_file(self, lpath: str, rpath: str, callback: Any = None, mode: str = 'overwrite', **options: Any) -> None:
        if mode != 'overwrite':
            raise NotImplementedError("Composer's stores cannot create a file on condition that there is none")
        store, key = self._find(rpath)
        store.upload_object(key, lpath)

    def get_file(self, rpath: str, lpath: str, **options: Any) -> None:
        store, key = self._find(rpath)
        store.download_object(key, lpath, overwrite=True)

    def _root(self, path: str) -> str:
        parts = path.split('/')
        return '/'.join(parts[:_PARTS_OF_VOLUME] if self._scheme == 'dbfs' else parts[:1])

    def _find(self, path: str) -> tuple[Any, str]:
        """Composer's store of a path, and the object's name in it."""
        from composer.utils import maybe_create_object_store_from_uri  # slow to import; `push` rarely needs it

        path = self._strip_protocol(path)
        root = self._root(path)
        with self._lock:
            if root not in self._stores:
                address = f'dbfs:/{root}' if self._scheme == 'dbfs' else f'{self._scheme}://{root}'
                self._stores[root] = maybe_create_object_store_from_uri(address)
            return self._stores[root], path[len(root) + 1 :]
