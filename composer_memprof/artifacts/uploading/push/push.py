"""Uploads files that a run left behind, and asks stores for those that it uploaded: the ``push`` command, ``push_at_exit``.

Needs neither Composer nor torch.
"""

from __future__ import annotations

import contextlib
import functools
import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from composer_memprof.artifacts.naming.addresses import check_scheme, scheme_of
from composer_memprof.artifacts.reading.containment import inside
from composer_memprof.artifacts.reading.locks import locked
from composer_memprof.artifacts.reading.manifest import (
    Entry,
    append_line,
    find_manifests,
    is_unfinished,
    read_manifest,
)
from composer_memprof.artifacts.reading.open_files import pushers_of, writers_of
from composer_memprof.artifacts.uploading.destinations import FsspecDestination
from composer_memprof.artifacts.uploading.limits import files_at_once
from composer_memprof.artifacts.uploading.process.pool import Upload, UploadPool, Waiting
from composer_memprof.artifacts.uploading.push.targets import Allowed, Target, targets_of
from composer_memprof.artifacts.writing.disk import digest
from composer_memprof.artifacts.writing.failures import only_exceptions
from composer_memprof.artifacts.writing.temporary_files import clear_unfinished
from composer_memprof.messages import errors_logged, log_error
from composer_memprof.redaction import one_line

#: Number of manifests that are locked at once; each needs a descriptor.
_MANIFESTS_AT_ONCE = 64


@dataclass(frozen=True)
class PushResult:
    """The outcome for one file, or for a manifest that can't be pushed.

    Args:
        path (Path): of the file or the manifest.
        remote (str): the address of the file in the store; empty for a manifest.
        error (str, optional): why the file is not in the store; None if it is.
        was_sent (bool): the file was uploaded now. False for one that was uploaded before, and verified now.
    """

    path: Path
    remote: str
    error: Optional[str] = None
    was_sent: bool = True


def push(
    folder: Path,
    storage_options: Optional[Mapping[str, Any]] = None,
    report: Callable[[PushResult], None] = lambda result: None,
    progress: Callable[[Waiting], object] = lambda left: None,
    allowed: Optional[Allowed] = None,
    *,
    verify: bool = False,
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
        verify (bool): ask the stores for each uploaded file. One that a store does not have is listed as ``failed``.
    """
    return push_manifests(find_manifests(folder), storage_options, report, progress, allowed, verify=verify)


def push_manifests(
    manifests: Sequence[Path],
    storage_options: Optional[Mapping[str, Any]] = None,
    report: Callable[[PushResult], None] = lambda result: None,
    progress: Callable[[Waiting], object] = lambda left: None,
    allowed: Optional[Allowed] = None,
    *,
    verify: bool = False,
) -> list[PushResult]:
    """Upload as :func:`push` does, from given manifests. A manifest of a running job with files to upload is an error."""
    pushing = _Pushing(FsspecDestination(storage_options), report, progress, allowed or Allowed(), verify)
    for first in range(0, len(manifests), _MANIFESTS_AT_ONCE):
        pushing.push(manifests[first : first + _MANIFESTS_AT_ONCE])
    return pushing.results


def targets(folder: Path, *, verify: bool = False) -> list[Target]:
    """The places to which :func:`push` would send files, as the manifests have them now; ``verify`` as there."""
    found: list[tuple[str, Optional[int]]] = []
    for manifest in find_manifests(folder):
        with contextlib.suppress(OSError):  # push says so
            found += [
                (entry.remote, entry.bytes)
                for entry in read_manifest(manifest)
                if entry.remote is not None and scheme_of(entry.remote) is not None
                if _is_pending(entry) or (verify and _is_sent(entry))
            ]
    return targets_of(found)


class _RefusedError(ValueError):
    """A file that may not or can not be uploaded. The text is the whole reason."""


@dataclass(frozen=True)
class _Pending:
    """A file that is not uploaded, and the manifest that lists it."""

    manifest: Path
    entry: Entry


@dataclass(frozen=True)
class _Outcome:
    """The new entry of a file, if it has one, and why the file is not in the store; None if it is there."""

    entry: Optional[Entry] = None
    error: Optional[str] = None


class _Pushing:
    """Uploads several files at once; manifests are written to by the calling thread alone."""

    def __init__(
        self,
        destination: FsspecDestination,
        report: Callable[[PushResult], None],
        progress: Callable[[Waiting], object],
        allowed: Allowed,
        verify: bool,
    ) -> None:
        self.results: list[PushResult] = []
        self._verify = verify
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
        if locks.enter_context(locked(manifest)) is False:
            if any(self._concerns(entry) or _is_being_written(entry) for entry in read_manifest(manifest)):
                self._add(PushResult(manifest, '', _held(manifest)))
            return []
        with errors_logged('temporary files could not be removed'):
            clear_unfinished(manifest)
        return [_Pending(manifest, entry) for entry in read_manifest(manifest) if self._concerns(entry)]

    def _concerns(self, entry: Entry) -> bool:
        is_one = _is_pending(entry) or (self._verify and _is_sent(entry))
        return is_one and (self._allowed.only is None or entry.remote in self._allowed.only)

    def _upload(self, pending: Sequence[_Pending]) -> None:
        if not pending:
            return
        done: queue.SimpleQueue[tuple[_Pending, _Outcome]] = queue.SimpleQueue()
        pool = UploadPool('memprof-push', files_at_once)
        pool.acquire()
        try:
            for file in pending:
                pool.submit(Upload(functools.partial(self._settle, file, done), self, file.entry.bytes or 0))
            pool.run_here_without_threads()
            for _ in pending:
                self._progress(pool.left())
                self._record(*done.get())
            self._progress(Waiting(0, 0))
        finally:
            pool.release()

    def _settle(self, file: _Pending, done: queue.SimpleQueue[tuple[_Pending, _Outcome]]) -> None:
        try:
            with only_exceptions():
                done.put((file, self._outcome(file)))
        except _RefusedError as error:
            done.put((file, _Outcome(error=str(error))))
        except Exception as error:  # a destination's client may raise anything; the other files are still uploaded
            log_error(f'uploading {file.entry.path} failed')
            done.put((file, _Outcome(error=one_line(error))))

    def _outcome(self, file: _Pending) -> _Outcome:
        if not _is_pending(file.entry):
            return _verified(file, file.entry, self._destination, self._allowed)
        sent = _uploaded(file, self._destination, self._allowed)
        return _verified(file, sent, self._destination, self._allowed) if self._verify else _Outcome(sent)

    def _record(self, file: _Pending, outcome: _Outcome) -> None:
        entry, error = outcome.entry or file.entry, outcome.error
        if entry is not file.entry:
            try:
                append_line(file.manifest, entry)
            except OSError as full:
                error = error or f'it is uploaded, but its manifest takes no line: {full}'
        self._add(PushResult(file.manifest.parent / entry.path, entry.remote or '', error, _is_pending(file.entry)))

    def _add(self, result: PushResult) -> None:
        self.results.append(result)
        self._report(result)


def _is_pending(entry: Entry) -> bool:
    return entry.remote is not None and entry.status in ('handed_over', 'open', 'saved', 'failed')


def _is_sent(entry: Entry) -> bool:
    """True if the file was uploaded, also if it was removed here since."""
    return entry.remote is not None and entry.status in ('uploaded', 'removed')


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
    entry = file.entry
    assert entry.remote is not None
    if scheme_of(entry.remote) is None and entry.status == 'handed_over':
        raise _RefusedError("it was handed over to Composer's logger, and whether it arrived can't be told from here")
    if scheme_of(entry.remote) is None:
        raise _RefusedError('it has no address: only the logger of its run could upload it. The file is kept')
    resolved = _checked_path(file, allowed)
    if not resolved.is_file():
        if entry.status == 'handed_over' and entry.bytes is not None and destination.has(entry.remote, entry.bytes):
            return replace(entry, status='uploaded')
        raise _RefusedError('there is no such file in the folder of its manifest')
    size, sha256 = digest(resolved)
    sent = destination.upload(resolved, entry.remote)
    return replace(entry, remote=sent.name, bytes=size, sha256=sha256, status='uploaded')


def _verified(file: _Pending, sent: Entry, destination: FsspecDestination, allowed: Allowed) -> _Outcome:
    """Ask the store for a file that counts as uploaded: for size and checksum, or for the size if the file is removed.

    Raises:
        _RefusedError: if nobody can tell.
        Exception: any error of the destination's client.
    """
    assert sent.remote is not None
    if scheme_of(sent.remote) is None:
        raise _RefusedError('it has no address, so only the logger of its run knows where it is')
    path = _checked_path(file, allowed)
    if not path.is_file():
        if sent.bytes is None or destination.has(sent.remote, sent.bytes):
            return _Outcome(sent)
        return _Outcome(error=f'the store has no file of {sent.bytes} bytes there, and the file here was removed')
    found = destination.compare(path, sent.remote)
    if found.is_copy is None:
        raise _RefusedError(f'nobody can tell whether it is there: {found.why}')
    if found.is_copy:
        return _Outcome(sent)
    return _Outcome(replace(sent, status='failed'), f'{found.why}. The file is kept; push again')


def _checked_path(file: _Pending, allowed: Allowed) -> Path:
    """The path of a file, once its address is one to which files may be sent."""
    assert file.entry.remote is not None
    resolved = inside(file.manifest.parent, file.entry.path)
    check_scheme(file.entry.remote, 'remote')
    refused = allowed.refuses(file.entry.remote)
    if refused is not None:
        raise _RefusedError(refused)
    return resolved
