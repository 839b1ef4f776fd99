"""Where a push may send files. A manifest may come from anybody, so the caller names or confirms each place."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import fsspec

from composer_memprof.artifacts.naming.addresses import scheme_of


@dataclass(frozen=True)
class Target:
    """A folder of a store, or of this machine, to which a push would send files.

    Args:
        address (str): of the folder that all of these files have in common.
        files (int): their number.
        bytes (int): their size, as far as the manifests give it.
    """

    address: str
    files: int
    bytes: int


class Allowed:
    """The places to which a push may send files.

    >>> allowed = Allowed(places=['s3://runs/a'])
    >>> [allowed.refuses(address) is None for address in ('s3://runs/a/x', 's3://runs/b/x', 'file:///tmp/x')]
    [True, False, False]

    Args:
        local (Sequence[Path]): folders of this machine; no other is written to.
        places (Sequence[str], optional): addresses of folders in stores; None: all.
        only (Collection[str], optional): the addresses of the files to push, which the run itself has chosen.
    """

    def __init__(
        self,
        local: Sequence[Path] = (),
        places: Optional[Sequence[str]] = None,
        only: Optional[Collection[str]] = None,
    ) -> None:
        self.only = only
        self._local = [folder.expanduser().resolve() for folder in local]
        self._places = None if places is None else [_normal(place) for place in places]

    def refuses(self, address: str) -> Optional[str]:
        """Why no file may be sent to ``address``; None if one may."""
        if self.only is not None:
            return None if address in self.only else 'it is not of this run'
        path = local_path(address)
        if path is not None:
            folder = next((folder for folder in self._local if folder in path.parents), None)
            if folder is None:
                return f'it is on this machine; to write there, add --allow-local {path.parent}'
            hidden = any(part.startswith('.') for part in path.relative_to(folder).parts)
            return 'it is a hidden path on this machine, to which push does not write' if hidden else None
        if self._places is None or any(_normal(address).startswith(f'{place}/') for place in self._places):
            return None
        return 'it is in a place that was not confirmed'


def local_path(address: str) -> Optional[Path]:
    """The file of this machine that an address means, with every link resolved; None for one in a store."""
    if scheme_of(address) not in ('file', 'local'):
        return None
    path = Path(fsspec.core.url_to_fs(address)[1])
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):  # a name that no file can have, or links in a circle: no write succeeds
        return Path(os.path.abspath(path))


def targets_of(files: Iterable[tuple[str, Optional[int]]]) -> list[Target]:
    """The folders to which files would be sent: one for each bucket or host, and each folder of this machine.

    >>> targets_of([('s3://runs/a/x.json', 10), ('s3://runs/a/b/y.json', None), ('s3://other/z', 1)])
    [Target(address='s3://runs/a', files=2, bytes=10), Target(address='s3://other', files=1, bytes=1)]

    Args:
        files (Iterable): the address and the bytes of each.
    """
    found: dict[str, Target] = {}
    for address, size in files:
        path = local_path(address)
        folder = posixpath.dirname(_normal(address) if path is None else f'file://{path}')
        root = '/'.join(folder.split('/')[:3]) if path is None else folder
        known = found.get(root, Target(folder, 0, 0))
        common = _common(known.address, folder)
        found[root] = Target(common, known.files + 1, known.bytes + (size or 0))
    return list(found.values())


def _normal(address: str) -> str:
    """The address without ``..``, which a store or its client may resolve."""
    scheme, separator, rest = address.rpartition('://')
    bucket, _, key = rest.partition('/')
    return f'{scheme}{separator}{bucket}{posixpath.normpath(f"/{key}").rstrip("/")}'


def _common(one: str, other: str) -> str:
    parts = []
    for mine, theirs in zip(one.split('/'), other.split('/')):
        if mine != theirs:
            break
        parts.append(mine)
    return '/'.join(parts)
