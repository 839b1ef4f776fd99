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

from composer_memprof.artifacts.destinations import FsspecDestination, check_scheme, scheme_of
from composer_memprof.artifacts.exiting import exit_deadline
from composer_memprof.artifacts.files import digest
from composer_memprof.artifacts.manifest import Entry, append_line, find_manifests, read_manifest, taking_over


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
        results += push_manifest(manifest, storage_options, report)
    return results


def push_manifest(
    manifest: Path,
    storage_options: Optional[Mapping[str, Any]] = None,
    report: Callable[[Pushed], None] = lambda pushed: None,
) -> list[Pushed]:
    """Upload what one manifest says was not. A running job's is left to it."""
    results: list[Pushed] = []
    try:
        with taking_over(manifest) as ours:
            pending = [entry for entry in read_manifest(manifest) if _is_pending(entry)] if ours else []
            for entry in pending:
                results.append(_push_one(manifest, entry, storage_options))
                report(results[-1])
    except OSError as error:  # one manifest that can't be read, or written, is no reason to leave out the others
        results.append(Pushed(manifest, '', f'{type(error).__name__}: {error}'))
        report(results[-1])
    return results


def _is_pending(entry: Entry) -> bool:
    return (
        entry.status in ('open', 'saved', 'failed') and entry.remote is not None and scheme_of(entry.remote) is not None
    )


def _push_one(manifest: Path, entry: Entry, storage_options: Optional[Mapping[str, Any]]) -> Pushed:
    assert entry.remote is not None
    folder = manifest.parent
    path = folder / entry.path
    try:
        resolved = path.resolve()
        if folder.resolve() not in resolved.parents or not resolved.is_file():
            raise ValueError('no such file in the folder of its manifest')
        check_scheme(entry.remote, 'remote')
        _check_local_target(entry.remote)
        size, sha256 = digest(resolved)
        remote = FsspecDestination(storage_options).upload(resolved, entry.remote)
    except Exception as error:  # a store's client may raise anything; the other files are still to be sent
        return Pushed(path, entry.remote, f'{type(error).__name__}: {error}')
    append_line(manifest, replace(entry, remote=remote, bytes=size, sha256=sha256, status='uploaded'))
    return Pushed(path, remote)


def _check_local_target(remote: str) -> None:
    """A manifest may come from a stranger: it gets nothing into the places that change what this machine does.

    Raises:
        ValueError: for a target on this machine with a hidden folder or file, such as ``~/.ssh``.
    """
    if scheme_of(remote) not in ('file', 'local'):
        return
    parts = Path(remote.partition('://')[2]).parts
    if any(part.startswith('.') for part in parts):
        raise ValueError(f'{remote!r} is a hidden place on this machine, which a manifest may not name')


# -- at interpreter exit ------------------------------------------------------------------------------------------
# A store's client needs threads, which a closing interpreter no longer gives; a child process has them.


@dataclass(frozen=True)
class _Leftover:
    manifest: Path
    storage_options: Mapping[str, Any]
    timeout: float


_leftovers: list[_Leftover] = []


def at_exit(manifest: Path, storage_options: Mapping[str, Any], timeout: float) -> None:
    """Have what ``manifest`` says was not uploaded sent by a child process, once every callback has closed."""
    _leftovers.append(_Leftover(manifest, storage_options, timeout))


def _push_leftovers() -> None:
    if not _leftovers:
        return
    deadline = exit_deadline(max(leftover.timeout for leftover in _leftovers))
    everyone = [(str(leftover.manifest), dict(leftover.storage_options)) for leftover in _leftovers]
    manifests = [item for position, item in enumerate(everyone) if item not in everyone[:position]]
    _leftovers.clear()
    # The options travel through a pipe: arguments and environments can be read by others.
    work = json.dumps(manifests, default=str)
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
        folders = ' '.join(sorted({str(Path(name).parent) for name, _ in manifests}))
        sys.stderr.write(
            f'composer_memprof: not all was uploaded in time; send it with: composer-memprof push {folders}\n'
        )


def _be_the_child() -> None:
    for manifest, storage_options in json.load(sys.stdin):
        for pushed in push_manifest(Path(manifest), storage_options):
            if pushed.error is not None:
                sys.stderr.write(f'composer_memprof: {pushed.path} was not uploaded: {pushed.error}\n')


# Composer's engine registers its own at every Trainer's start. Exit handlers run in reverse, so this one, registered
# when the package is imported, comes after all callbacks have closed.
atexit.register(_push_leftovers)
