"""Compares an object in a store with a file, because the answer to an upload may be lost after the object is complete."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from composer_memprof.artifacts.uploading.filesystems import call
from composer_memprof.artifacts.writing.disk import digest
from composer_memprof.messages import log_error

#: The description of an object that the credentials may write, but not read. Not even its existence is known.
UNREADABLE: Mapping[str, Any] = {}
_CHUNK = 8 << 20
_TIMEOUT_S = 60.0


def find_object(filesystem: Any, target: str) -> Optional[Mapping[str, Any]]:
    """The store's description of ``target``; None if there is no such object, UNREADABLE if the store refuses to tell."""
    try:
        return call(filesystem, 'info', target, timeout=_TIMEOUT_S)
    except FileNotFoundError:
        return None
    except PermissionError:
        return UNREADABLE


def is_copy(filesystem: Any, target: str, info: Mapping[str, Any], path: Path) -> bool:
    """True if the object has the content of ``path``.

    Compares the size, then the MD5 that the store has. If both are no proof, it reads the object.
    """
    if info.get('type') == 'directory':
        return False
    size, stored = info.get('size'), _md5_in(info)
    if size is not None and size != path.stat().st_size:
        return False
    if stored is not None and stored == _md5_of(path):
        return True
    try:
        if size is None:
            return _is_copy_when_read(filesystem, target, path)
        return _sha256_of_object(filesystem, target, path.stat().st_size) == digest(path)[1]
    except PermissionError:  # whoever may only write can't tell
        log_error(f'{target} could not be compared')
        return False


def _is_copy_when_read(filesystem: Any, target: str, path: Path) -> bool:
    """Compare by download, for a store that gives no sizes."""
    with tempfile.TemporaryDirectory(prefix='memprof-') as folder:
        copy = Path(folder, 'object')
        filesystem.get_file(target, str(copy))
        return digest(copy) == digest(path)


def _md5_in(info: Mapping[str, Any]) -> Optional[str]:
    """The MD5 in a store's description of an object. An ETag may be something else, which equals no MD5."""
    etag = str(info.get('ETag', '')).strip('"').lower()
    if re.fullmatch('[0-9a-f]{32}', etag):
        return etag
    encoded = info.get('md5Hash')
    if isinstance(encoded, str):
        with contextlib.suppress(ValueError):
            return base64.b64decode(encoded).hex()
    return None


def _md5_of(path: Path) -> str:
    md5 = hashlib.md5(usedforsecurity=False)
    with open(path, 'rb') as file:
        while chunk := file.read(1 << 20):
            md5.update(chunk)
    return md5.hexdigest()


def _sha256_of_object(filesystem: Any, target: str, size: int) -> str:
    sha256 = hashlib.sha256()
    for start in range(0, size, _CHUNK):
        end = min(start + _CHUNK, size)
        sha256.update(call(filesystem, 'cat_file', target, start=start, end=end, timeout=_TIMEOUT_S))
    return sha256.hexdigest()
