"""Compares an object in a store with a file: the answer to an upload may be lost, and a store may keep less than it says."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from fsspec.implementations.local import LocalFileSystem

from composer_memprof.artifacts.uploading.filesystems import call
from composer_memprof.artifacts.writing.disk import digest
from composer_memprof.messages import log_error

#: The description of an object that the credentials may write, but not read. Not even its existence is known.
UNREADABLE: Mapping[str, Any] = {}
_CHUNK = 8 << 20
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Comparison:
    """The answer of a store about a file.

    Args:
        is_copy (bool, optional): whether the store has a copy of the file; None if nobody can tell.
        why (str): why not, or why nobody can tell.
    """

    is_copy: Optional[bool]
    why: str = ''


def find_object(filesystem: Any, target: str) -> Optional[Mapping[str, Any]]:
    """The store's description of ``target``; None if there is no such object, UNREADABLE if the store refuses to tell."""
    try:
        return call(filesystem, 'info', target, timeout=_TIMEOUT_S)
    except FileNotFoundError:
        return None
    except PermissionError:
        return UNREADABLE


def is_copy(filesystem: Any, target: str, info: Mapping[str, Any], path: Path, part_size: int) -> bool:
    """True if the object has the content of ``path``.

    Compares the size, then the checksum that the store has. If both are no proof, it reads the object.

    Args:
        filesystem (AbstractFileSystem): of the store.
        target (str): the name of the object in the filesystem.
        info (Mapping): the store's description of the object.
        path (Path): of the file.
        part_size (int): bytes of the parts in which a large file is sent.
    """
    if info.get('type') == 'directory':
        return False
    size, stored = info.get('size'), _checksum_in(info)
    if size is not None and size != path.stat().st_size:
        return False
    if stored is not None and stored == _checksum_of(path, stored, part_size):
        return True
    try:
        if size is None:
            return _is_copy_when_read(filesystem, target, path)
        return _sha256_of_object(filesystem, target, path.stat().st_size) == digest(path)[1]
    except PermissionError:  # whoever may only write can't tell
        log_error(f'{target} could not be compared')
        return False


def compare(filesystem: Any, target: str, path: Path, part_size: int) -> Comparison:
    """Compare the object of a file that counts as uploaded. The arguments are those of :func:`is_copy`.

    In a store that keeps no checksums, the size decides. A folder of this machine is read.
    """
    found = find_object(filesystem, target)
    if found is None:
        return Comparison(False, 'the store does not have it')
    if found == UNREADABLE:
        return Comparison(None, 'the credentials may not read it')
    size, stored = path.stat().st_size, found.get('size')
    if stored not in (None, size):
        return Comparison(False, f'the store has {stored} bytes, and the file {size}')
    if _checksum_in(found) is None and stored is not None and not isinstance(filesystem, LocalFileSystem):
        return Comparison(True)
    if is_copy(filesystem, target, found, path, part_size):
        return Comparison(True)
    return Comparison(False, 'the store has other content')


def _is_copy_when_read(filesystem: Any, target: str, path: Path) -> bool:
    """Compare by download, for a store that gives no sizes."""
    with tempfile.TemporaryDirectory(prefix='memprof-') as folder:
        copy = Path(folder, 'object')
        filesystem.get_file(target, str(copy))
        return digest(copy) == digest(path)


def _checksum_in(info: Mapping[str, Any]) -> Optional[str]:
    """The MD5 in a store's description of an object, or what S3 has for an object sent in parts. Others equal neither."""
    etag = str(info.get('ETag', '')).strip('"').lower()
    if re.fullmatch('[0-9a-f]{32}(-[0-9]+)?', etag):
        return etag
    encoded = info.get('md5Hash')
    if isinstance(encoded, str):
        with contextlib.suppress(ValueError):
            return base64.b64decode(encoded).hex()
    return None


def _checksum_of(path: Path, like: str, part_size: int) -> str:
    """The MD5 of a file; where ``like`` is of parts, the MD5 of the parts' MD5s and their number, as S3 has it."""
    if '-' not in like:
        return _md5_of(path)
    parts = hashlib.md5(usedforsecurity=False)
    with open(path, 'rb') as file:
        for number in itertools.count():
            part = file.read(part_size)
            if not part:
                return f'{parts.hexdigest()}-{number}'
            parts.update(hashlib.md5(part, usedforsecurity=False).digest())
    raise AssertionError('a file has an end')


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
