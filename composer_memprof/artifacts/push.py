"""Uploading what a run could not: by hand afterwards, and by a child process while the run's interpreter shuts down.

Needs neither Composer nor torch, so that the child starts in time.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from composer_memprof.artifacts.files import digest
from composer_memprof.artifacts.manifest import Entry, Manifest, find_manifests, read_manifest, taking_over
from composer_memprof.artifacts.remote import FsspecDestination, check_scheme, scheme_of


@dataclass(frozen=True)
class Pushed:
    """What became of one file that had not been uploaded. ``error`` is None where it now is."""

    path: Path
    remote: str
    error: Optional[str] = None


def push(
    folder: Path,
    storage_options: Optional[Mapping[str, Any]] = None,
    report: Callable[[Pushed], None] = lambda pushed: None,
) -> list[Pushed]:
    """Upload what the manifests under ``folder`` say was not, a dead run's open files included.

    Args:
        folder (Path): a run's folder, or any above it.
        storage_options (Mapping, optional): for the stores, beside the environment and fsspec's config.
        report (Callable, optional): told of each file as it is done.
    """
    results: list[Pushed] = []
    for manifest in find_manifests(folder):
        with taking_over(manifest) as dead:
            pending = [entry for entry in read_manifest(manifest) if _is_pending(entry, dead)]
        for entry in pending:
            pushed = _push_one(manifest, entry, storage_options)
            report(pushed)
            results.append(pushed)
    return results


def _is_pending(entry: Entry, dead: bool) -> bool:
    """A running job still sees to its own files; what it has given up on may be sent meanwhile."""
    if entry.remote is None or scheme_of(entry.remote) is None:
        return False
    return entry.status == 'failed' or (dead and entry.status in ('open', 'saved'))


def _push_one(manifest_path: Path, entry: Entry, storage_options: Optional[Mapping[str, Any]]) -> Pushed:
    assert entry.remote is not None
    folder = manifest_path.parent
    path = folder / entry.path
    try:
        resolved = path.resolve()
        if folder.resolve() not in resolved.parents or not resolved.is_file():
            raise ValueError('no such file in the folder of its manifest')
        check_scheme(entry.remote, 'remote')
        size, sha256 = digest(resolved)
        remote = FsspecDestination(storage_options).upload(resolved, entry.remote)
    except Exception as error:  # a store's client may raise anything; the other files are still to be sent
        return Pushed(path, entry.remote, f'{type(error).__name__}: {error}')
    manifest = Manifest.hold(folder, entry.rank)
    try:
        manifest.append(replace(entry, remote=remote, bytes=size, sha256=sha256, status='uploaded'))
    finally:
        manifest.release()
    return Pushed(path, remote)


# -- at interpreter exit ------------------------------------------------------------------------------------------
# A store's client needs threads, which a closing interpreter no longer gives; a child process has them.


@dataclass(frozen=True)
class _Leftover:
    folder: Path
    storage_options: Mapping[str, Any]
    timeout: float


_leftovers: list[_Leftover] = []


def at_exit(folder: Path, storage_options: Mapping[str, Any], timeout: float) -> None:
    """Have what ``folder`` still holds uploaded by a child process, once every callback has closed."""
    _leftovers.append(_Leftover(folder, storage_options, timeout))


def _push_leftovers() -> None:
    if not _leftovers:
        return
    deadline = time.monotonic() + max(leftover.timeout for leftover in _leftovers)
    unique = {str(leftover.folder.resolve()): leftover for leftover in _leftovers}
    _leftovers.clear()
    # The options travel through a pipe: arguments and environments can be read by others.
    work = json.dumps([[folder, dict(leftover.storage_options)] for folder, leftover in unique.items()], default=str)
    child = subprocess.Popen(
        [sys.executable, '-c', 'from composer_memprof.artifacts.push import _be_the_child; _be_the_child()'],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        child.communicate(work.encode(), timeout=max(deadline - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        child.kill()
        folders = ' '.join(unique)
        sys.stderr.write(
            f'composer_memprof: not all was uploaded in time; send it with: composer-memprof push {folders}\n'
        )


def _be_the_child() -> None:
    for folder, storage_options in json.load(sys.stdin):
        for pushed in push(Path(folder), storage_options):
            if pushed.error is not None:
                sys.stderr.write(f'composer_memprof: {pushed.path} was not uploaded: {pushed.error}\n')


# Composer's engine registers its own at every Trainer's start. Exit handlers run in reverse, so this one, registered
# when the package is imported, comes after all callbacks have closed.
atexit.register(_push_leftovers)
