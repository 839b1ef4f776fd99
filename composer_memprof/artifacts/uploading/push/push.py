"""Uploads files that a run left behind, for the ``push`` command and ``push_at_exit``. Needs neither Composer nor torch."""

from __future__ import annotations

import contextlib
import functools
import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional, Union

from composer_memprof.artifacts.naming.addresses import check_scheme, scheme_of
from composer_memprof.artifacts.reading.containment import inside
from composer_memprof.artifacts.reading.manifest import (
    Entry,
    append_line,
    find_manifests,
    is_unfinished,
    locked_for_push,
    read_manifest,
)
from composer_memprof.artifacts.reading.open_files import pushers_of, writers_of
from composer_memprof.artifacts.uploading.destinations import FsspecDestination
from composer_memprof.artifacts.uploading.limits import files_at_once
from composer_memprof.artifacts.uploading.process.pool import Upload, UploadPool, Waiting
from composer_memprof.artifacts.uploading.push.targets import Allowed, Target, targets_of
from composer_memprof.artifacts.writing.disk import digest
from composer_memprof.artifacts.writing.temporary_files import clear_unfinished
from composer_memprof.messages import errors_logged, log_error
from composer_memprof.redaction import one_line

#: Number of manifests that are locked at once; each needs a descriptor.
_MANIFESTS_AT_ONCE = 64


@dataclass(frozen=True)
class PushResult:
    """The outcome for one file, or for a manifest that can't be pushed. ``error`` is None if the file is uploaded now."""

    path: Path
    remote: str
    error: Optional[str] = None


def push(
    folder: Path,
    storage_options: Optional[Mapping[str, Any]] = None,
    report: Callable[[PushResult], None] = lambda result: None,
    progress: Callable[[Waiting], object] = lambda left: None,
    allowed: Optional[Allowed] = None,
) -> list[PushResult]:
    """Upload the files that the manifests in ``folder`` list as not uploaded, and the open files of dead runs.

    If a file was handed over to Composer's logger, the store is asked for it first.

    Args:
        folder (Path): of a run, or any folder above it.
        storage_options (Mapping, optional): for the destinations, in addition to the environment and fsspec's config.
        report (Callable, optional): called with each result as soon as it is known.
        progress (Callable, optional): called with the files that are left, at the beginning and after each file.
        allowed (Allowed, optional): the places to which files may be sent. Default: every store, no folder of this
            machine.
    """
    return push_manifests(find_manifests(folder), storage_options, report, progress, allowed)


def push_manifests(
    manifests: Sequence[Path],
    storage_options: Optional[Mapping[str, Any]] = None,
    report: Callable[[PushResult], None] = lambda result: None,
    progress: Callable[[Waiting], object] = lambda left: None,
    allowed: Optional[Allowed] = None,
) -> list[PushResult]:
    """Upload as :func:`push` does, from given manifests. A manifest of a running job with files to upload is an error."""
    pushing = _Pushing(FsspecDestination(storage_options), report, progress, allowed or Allowed())
    for first in range(0, len(manifests), _MANIFESTS_AT_ONCE):
        pushing.push(manifests[first : first + _MANIFESTS_AT_ONCE])
    return pushing.results


def targets(folder: Path) -> list[Target]:
    """The places to which :func:`push` would send files, as the manifests have them now."""
    found: list[tuple[str, Optional[int]]] = []
    for manifest in find_manifests(folder):
        with contextlib.suppress(OSError):  # push says so
            found += [
                (entry.remote, entry.bytes)
                for entry in read_manifest(manifest)
                if entry.remote is not None and scheme_of(entry.remote) is not None and _is_pending(entry)
            ]
    return targets_of(found)


class _RefusedError(ValueError):
    """A file that may not or can not be uploaded. The text is the whole reason."""


@dataclass(frozen=True)
class _Pending:
    """A file that is not uploaded, and the manifest that lists it."""

    manifest: Path
    entry: Entry


class _Pushing:
    """Uploads several files at once; manifests are written to by the calling thread alone."""

    def __init__(
        self,
        destination: FsspecDestination,
        report: Callable[[PushResult], None],
        progress: Callable[[Waiting], object],
        allowed: Allowed,
    ) -> None:
        self.results: list[PushResult] = []
        self._destination = destination
        self._allowed = allowed
        self._report = report
        self._progress = progress

    def push(self, manifests: Sequence[Path]) -> None:
        with contextlib.ExitStack() as locks:
            pending: list[_Pending] = []
            for manifest in manifests:
                try:
                    pending += self._lock(manifest, locks)
                except OSError as error:  # this manifest can't be read; the others are still pushed
                    self._add(PushResult(manifest, '', one_line(error)))
            self._upload(pending)

    def _lock(self, manifest: Path, locks: contextlib.ExitStack) -> list[_Pending]:
        if not locks.enter_context(locked_for_push(manifest)):
            if any(self._concerns(entry) or _is_being_written(entry) for entry in read_manifest(manifest)):
                self._add(PushResult(manifest, '', _held(manifest)))
            return []
        with errors_logged('temporary files could not be removed'):
            clear_unfinished(manifest)
        return [_Pending(manifest, entry) for entry in read_manifest(manifest) if self._concerns(entry)]

    def _concerns(self, entry: Entry) -> bool:
        return _is_pending(entry) and (self._allowed.only is None or entry.remote in self._allowed.only)

    def _upload(self, pending: Sequence[_Pending]) -> None:
        if not pending:
            return
        done: queue.SimpleQueue[tuple[_Pending, Union[Entry, str]]] = queue.SimpleQueue()
        pool = UploadPool('memprof-push', files_at_once)
        pool.acquire()
        try:
            for file in pending:
                pool.submit(Upload(functools.partial(self._upload_one, file, done), self, file.entry.bytes or 0))
            pool.run_here_without_threads()
            for _ in pending:
                self._progress(pool.left())
                self._record(*done.get())
            self._progress(Waiting(0, 0))
        finally:
            pool.release()

    def _upload_one(self, file: _Pending, done: queue.SimpleQueue[tuple[_Pending, Union[Entry, str]]]) -> None:
        try:
            done.put((file, _uploaded(file, self._destination, self._allowed)))
        except _RefusedError as error:
            done.put((file, str(error)))
        except Exception as error:  # a destination's client may raise anything; the other files are still uploaded
            log_error(f'uploading {file.entry.path} failed')
            done.put((file, one_line(error)))

    def _record(self, file: _Pending, outcome: Union[Entry, str]) -> None:
        path = file.manifest.parent / file.entry.path
        if isinstance(outcome, Entry):
            try:
                append_line(file.manifest, outcome)
            except OSError as error:
                outcome = f'it is uploaded, but its manifest takes no line: {error}'
            else:
                self._add(PushResult(path, outcome.remote or ''))
                return
        self._add(PushResult(path, file.entry.remote or '', outcome))

    def _add(self, result: PushResult) -> None:
        self.results.append(result)
        self._report(result)


def _is_pending(entry: Entry) -> bool:
    return entry.remote is not None and entry.status in ('handed_over', 'open', 'saved', 'failed')


def _is_being_written(entry: Entry) -> bool:
    return is_unfinished(entry) and entry.status == 'open'


def _held(manifest: Path) -> str:
    pushing = ', '.join(pushers_of(manifest))
    if pushing:
        return f'another push is at work on it: {pushing}. Push again once that has ended'
    held_by = ', '.join(writers_of(manifest)) or 'on another machine or of another user'
    return (
        f'it has files to upload, but its run, or a child that writes for it, is still at work: {held_by}. '
        'Push again once that has ended'
    )


def _uploaded(file: _Pending, destination: FsspecDestination, allowed: Allowed) -> Entry:
    """Upload a file that a manifest lists; returns its new entry. The manifest is not trusted.

    Raises:
        _RefusedError: if the file may not or can not be uploaded.
        Exception: any error of the destination's client.
    """
    entry, folder = file.entry, file.manifest.parent
    assert entry.remote is not None
    if scheme_of(entry.remote) is None and entry.status == 'handed_over':
        raise _RefusedError("it was handed over to Composer's logger, and whether it arrived can't be told from here")
    if scheme_of(entry.remote) is None:
        raise _RefusedError('it has no address: only the logger of its run could upload it. The file is kept')
    resolved = inside(folder, entry.path)
    check_scheme(entry.remote, 'remote')
    refused = allowed.refuses(entry.remote)
    if refused is not None:
        raise _RefusedError(refused)
    if not resolved.is_file():
        if entry.status == 'handed_over' and entry.bytes is not None and destination.has(entry.remote, entry.bytes):
            return replace(entry, status='uploaded')
        raise _RefusedError('there is no such file in the folder of its manifest')
    size, sha256 = digest(resolved)
    sent = destination.upload(resolved, entry.remote)
    return replace(entry, remote=sent.name, bytes=size, sha256=sha256, status='uploaded')
