"""The filesystems that serve addresses: Composer's own stores, or fsspec's, on an event loop of this package's own.

An upload that waits on this loop holds up nobody else; fsspec's own loop may be reading the training's data.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from typing import Any, Optional

import fsspec
from fsspec.asyn import AsyncFileSystem

from composer_memprof.artifacts.naming.addresses import is_served_by_composer, scheme_of
from composer_memprof.artifacts.uploading.composer_stores import ComposerStoreFileSystem


class _Loop:
    """The event loop and the process it belongs to. The thread of the loop does not exist in a forked child."""

    lock = threading.Lock()
    loop: Optional[asyncio.AbstractEventLoop] = None
    pid = 0


def _own_loop() -> asyncio.AbstractEventLoop:
    with _Loop.lock:
        if _Loop.loop is None or _Loop.pid != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name='memprof-upload-loop', daemon=True).start()
            asyncio.run_coroutine_threadsafe(
                asyncio.sleep(0), loop
            ).result()  # fsspec's cache asks whether the loop runs
            _Loop.loop, _Loop.pid = loop, os.getpid()
        return _Loop.loop


def filesystem_of(name: str, storage_options: Optional[Mapping[str, Any]] = None) -> tuple[Any, str]:
    """The filesystem that serves an address, and the name of the file in that filesystem. May connect.

    Args:
        name (str): such as ``s3://bucket/key``.
        storage_options (Mapping, optional): in addition to the environment and fsspec's config.
    """
    scheme = scheme_of(name)
    if scheme is not None and is_served_by_composer(name):
        store = ComposerStoreFileSystem(scheme)
        return store, store._strip_protocol(name)
    options = dict(storage_options or {})
    scheme = fsspec.utils.get_protocol(name)
    if issubclass(fsspec.get_filesystem_class(scheme), AsyncFileSystem):
        options.setdefault('loop', _own_loop())
    return fsspec.core.url_to_fs(name, **options)


def call(filesystem: Any, method: str, *arguments: Any, timeout: float, **more: Any) -> Any:
    """Call a method of a filesystem. An asynchronous one is cancelled after ``timeout`` seconds.

    Raises:
        TimeoutError: if the method took longer.
        Exception: any error of the method.
    """
    if isinstance(filesystem, AsyncFileSystem):
        more['timeout'] = timeout
    return getattr(filesystem, method)(*arguments, **more)
