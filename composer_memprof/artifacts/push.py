"""Uploads what a run did not: by the ``push`` command, and in a child process at interpreter exit.

Imports neither Composer nor torch, so that the child process starts fast.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from composer_memprof.artifacts.addresses import check_scheme, scheme_of
from composer_memprof.artifacts.containment import inside
from composer_memprof.artifacts.destinations import FsspecDestination
from composer_memprof.artifacts.exiting import Deadline
from composer_memprof.artifacts.files import digest
from composer_memprof.artifacts.manifest import Entry, append_line, find_manifests, locked_for_push, read_manifest
from composer_memprof.artifacts.unfinished import clear_unfinished
from composer_memprof.messages import log_error


@dataclass(frozen=True)
class PushResult:
    """The outcome for one file. ``error`` is None if it is uploaded now."""

    path: Path
    remote: str
    error: Optional[str] = None


def push(
    folder: Path,
    storage_options: Optional[Mapping[str, Any]] = None,
    report: Callable[[PushResult], None] = lambda result: None,
) -> list[PushResult]:
    """Upload the files that the manifests in ``folder`` list as not uploaded, and the open files of dead runs.

    Args:
        folder (Path): of a run, or any folder above it.
        storage_options (Mapping, optional): for the destinations, in addition to the environment and fsspec's config.
        report (Callable, optional): called with each result as it comes.
    """
    results: list[PushResult] = []
    for manifest in find_manifests(folder):
        results += push_manifest(manifest, storage_options, report)
    return results


def push_manifest(
    manifest: Path,
    storage_options: Optional[Mapping[str, Any]] = None,
    report: Callable[[PushResult], None] = lambda result: None,
) -> list[PushResult]:
    """Upload the files that one manifest lists as not uploaded. Does nothing if its job is running."""
    results: list[PushResult] = []
    try:
        with locked_for_push(manifest) as locked:
            if locked:
                clear_unfinished(manifest)
            pending = [entry for entry in read_manifest(manifest) if _is_pending(entry)] if locked else []
            for entry in pending:
                results.append(_push_one(manifest, entry, storage_options))
                report(results[-1])
    except OSError as error:  # the manifest can't be read or written; the other ones are still pushed
        results.append(PushResult(manifest, '', f'{type(error).__name__}: {error}'))
        report(results[-1])
    return results


def _is_pending(entry: Entry) -> bool:
    return (
        entry.status in ('open', 'saved', 'failed') and entry.remote is not None and scheme_of(entry.remote) is not None
    )


def _push_one(manifest: Path, entry: Entry, storage_options: Optional[Mapping[str, Any]]) -> PushResult:
    assert entry.remote is not None
    folder = manifest.parent
    path = folder / entry.path
    try:
        resolved = inside(folder, entry.path)
        if not resolved.is_file():
            raise ValueError('there is no such file in the folder of its manifest')
        check_scheme(entry.remote, 'remote')
        _check_local_target(entry.remote)
        size, sha256 = digest(resolved)
        remote = FsspecDestination(storage_options).upload(resolved, entry.remote).name
    except Exception as error:  # a destination's client may raise anything; the other files are still uploaded
        log_error(f'uploading {entry.path} failed')
        return PushResult(path, entry.remote, f'{type(error).__name__}: {error}')
    append_line(manifest, replace(entry, remote=remote, bytes=size, sha256=sha256, status='uploaded'))
    return PushResult(path, remote)


def _check_local_target(remote: str) -> None:
    """Refuse a target on this machine in a hidden folder, such as ``~/.ssh``: a manifest may come from anybody.

    Raises:
        ValueError: if a part of the path starts with a dot.
    """
    if scheme_of(remote) not in ('file', 'local'):
        return
    parts = Path(remote.partition('://')[2]).parts
    if any(part.startswith('.') for part in parts):
        raise ValueError(f'{remote!r} is a hidden path on this machine, to which push does not write')


# -- at interpreter exit ------------------------------------------------------------------------------------------
# A destination's client needs threads, which no longer start at interpreter exit; a child process has them.


@dataclass(frozen=True)
class _PendingPush:
    manifest: Path
    storage_options: Mapping[str, Any]
    timeout: float


_pending: list[_PendingPush] = []


def push_at_exit(manifest: Path, storage_options: Mapping[str, Any], timeout: float) -> None:
    """Push ``manifest`` in a child process, after every callback has closed."""
    _pending.append(_PendingPush(manifest, storage_options, timeout))


def _push_pending() -> None:
    if not _pending:
        return
    longest = max(pending.timeout for pending in _pending)
    deadline = Deadline(longest, if_leaving=longest, if_hurried=0)
    requests = [(str(pending.manifest), dict(pending.storage_options)) for pending in _pending]
    unique = [request for position, request in enumerate(requests) if request not in requests[:position]]
    _pending.clear()
    child = subprocess.Popen(
        [sys.executable, '-c', 'from composer_memprof.artifacts.push import push_from_stdin; push_from_stdin()'],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(path for path in sys.path if path)},
    )
    # Through a pipe, because other users can read a process's arguments, and the options may hold credentials.
    with contextlib.suppress(BrokenPipeError):  # it has died
        assert child.stdin is not None
        child.stdin.write(json.dumps(unique, default=str).encode())
        child.stdin.close()
    if not _ends_by(child, deadline):
        child.kill()
        folders = ' '.join(sorted({str(Path(name).parent) for name, _ in unique}))
        sys.stderr.write(
            'composer_memprof: some files were not uploaded in time. '
            f'Upload them with: composer-memprof push {folders}\n'
        )


def _ends_by(child: subprocess.Popen[bytes], deadline: Deadline) -> bool:
    while True:
        try:
            child.wait(max(min(deadline.left(), 1.0), 0.1))  # the deadline may come sooner in the meantime
            return True
        except subprocess.TimeoutExpired:
            if not deadline.left():
                return False


def push_from_stdin() -> None:
    """The child process: push the manifests that are listed in JSON on stdin."""
    for manifest, storage_options in json.load(sys.stdin):
        for result in push_manifest(Path(manifest), storage_options):
            if result.error is not None:
                sys.stderr.write(f'composer_memprof: {result.path} was not uploaded: {result.error}\n')


# Exit handlers run in reverse order. Composer's engine registers its own when a Trainer starts, so this one, registered
# at import, runs after all callbacks have closed.
atexit.register(_push_pending)
