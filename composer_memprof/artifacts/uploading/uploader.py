"""Uploads saved files on background threads, several at once. ``push`` uploads the files that are left at the close."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Optional

from composer_memprof.artifacts.naming.addresses import scheme_of
from composer_memprof.artifacts.reading.manifest import Entry
from composer_memprof.artifacts.uploading.destinations import Destination, FsspecDestination, Sent
from composer_memprof.artifacts.uploading.last_uploads import Unsent, last_uploads
from composer_memprof.artifacts.uploading.limits import files_at_once
from composer_memprof.artifacts.uploading.process.pool import Upload, UploadPool, Waiting
from composer_memprof.artifacts.uploading.process.start import UploadFailedError, UploadProcess
from composer_memprof.artifacts.uploading.push.at_exit import push_at_exit
from composer_memprof.artifacts.uploading.sent import Comparison
from composer_memprof.artifacts.writing.deadlines import Deadline, exiting
from composer_memprof.artifacts.writing.failures import Failures, only_exceptions
from composer_memprof.artifacts.writing.folder import ArtifactFolder
from composer_memprof.artifacts.writing.retention import KeptWindows, WindowFiles
from composer_memprof.messages import log_error, push_command
from composer_memprof.redaction import one_line

#: Shared by all stores.
_process = UploadProcess()
_pool = UploadPool('memprof-uploader', files_at_once, on_end=_process.stop)
#: Seconds between two looks for files that were handed over to a logger.
_LOOK_EVERY_S = 0.25


class Uploader:
    """Uploads the files of one store.

    Args:
        folder (ArtifactFolder): of the files.
        windows (KeptWindows): learns which files are uploaded, and then removes old ones.
        failures (Failures): warns if an upload fails.
    """

    def __init__(self, folder: ArtifactFolder, windows: KeptWindows, failures: Failures) -> None:
        self._folder = folder
        self._windows = windows
        self._failures = failures
        self._confirming = threading.Lock()
        _pool.acquire()

    def send(self, window: WindowFiles) -> None:
        """Queue the window's files, and remove those of old windows of which the store has copies."""
        for entry in list(window.entries):
            if entry.remote is not None:
                self._submit(entry, window)
        if self._windows.has_any_to_compare():
            _pool.submit(Upload(self._remove_old, self))
        else:
            self._windows.remove_old()

    def close(self, timeout: float) -> None:
        """Retry failed uploads once, and wait up to ``timeout`` seconds. At interpreter exit a child uploads the rest."""
        if not exiting():
            for entry, window in self._windows.files('failed'):
                if entry.remote is not None:
                    self._submit(entry, window)
        last_uploads.wait_for(self, timeout)
        destination = self._folder.destination
        addresses = self._windows.not_uploaded()
        if exiting() and isinstance(destination, FsspecDestination) and addresses:
            push_at_exit(self._folder.manifest.path, addresses, destination.storage_options, timeout)

    def release(self) -> None:
        _pool.release()

    # -- for LastUploads --------------------------------------------------------------------------------------------

    def wait(self, deadline: Deadline, each_second: Callable[[], None], *, confirm: bool) -> None:
        _pool.wait(self, deadline, each_second)
        while confirm and deadline.left() and self._look(deadline) is False:
            time.sleep(min(_LOOK_EVERY_S, deadline.left()))

    def left_of_all(self) -> Waiting:
        return _pool.left()

    def unsent(self, deadline: Deadline) -> Unsent:
        handed_over = self._windows.files('handed_over') if self._look(deadline) is False else []
        return Unsent(self._folder.path, _pool.left(self).files, len(handed_over))

    def _look(self, deadline: Deadline) -> Optional[bool]:
        """Call :meth:`_confirm` on a thread of the pool, because a store may not answer. False if the answer takes too long."""
        if not self._windows.files('handed_over'):
            return True
        found: list[Optional[bool]] = []

        def look() -> None:
            self._failures.guard(lambda: found.append(self._confirm()))
            self._remove_old()

        _pool.submit(Upload(look, self))
        _pool.wait(self, deadline)
        return found[0] if found else False

    # -- on a thread of the pool ------------------------------------------------------------------------------------

    def _submit(self, entry: Entry, window: WindowFiles) -> None:
        _pool.submit(Upload(lambda: self._upload(entry, window), self, entry.bytes or 0))

    def _upload(self, entry: Entry, window: WindowFiles) -> None:
        self._failures.guard(lambda: self._upload_file(entry, window))
        self._failures.guard(self._confirm)
        self._remove_old()

    def _upload_file(self, entry: Entry, window: WindowFiles) -> None:
        destination = self._folder.destination
        assert destination is not None and entry.remote is not None
        if exiting() and isinstance(destination, FsspecDestination):
            return  # an fsspec client needs threads, which no longer start; `push` uploads it in a child process
        try:
            with only_exceptions():
                address = destination.address_of(entry.remote)
                if address != entry.remote:  # listed at once, so that `push` knows the address if the run is killed
                    entry = replace(entry, remote=address)
                    self._record(entry, window)
                sent = self._send(destination, self._folder.path / entry.path, address)
        except Exception as error:  # a destination's client may raise anything
            log_error(f'uploading {entry.path} failed', getattr(error, 'traceback', None))
            reason = str(error) if isinstance(error, UploadFailedError) else one_line(error)
            self._record_failed(entry, window, f'uploading {entry.path} to {entry.remote} failed: {reason}')
        else:
            self._record(replace(entry, remote=sent.name, status=sent.status), window)

    def _record_failed(self, entry: Entry, window: WindowFiles, what: str) -> None:
        self._record(replace(entry, status='failed'), window)
        later = f'. Upload it later with: {push_command([self._folder.path])}' if scheme_of(entry.remote or '') else ''
        self._failures.warn_once('upload', f'{what}. The file is kept{later}')

    def _remove_old(self) -> None:
        """Remove the files of old windows. First ask the store for each: it may keep nothing of what it has accepted."""
        for entry, window in [] if exiting() else self._windows.take_to_compare():
            self._failures.guard(functools.partial(self._compare, entry, window))
        self._failures.guard(self._windows.remove_old)

    def _compare(self, entry: Entry, window: WindowFiles) -> None:
        destination = self._folder.destination
        assert destination is not None and entry.remote is not None
        path = self._folder.path / entry.path
        try:
            with only_exceptions():
                found = self._ask_for_copy(destination, path, entry.remote)
        except Exception as error:  # a store's client may raise anything
            log_error(f'looking for {entry.remote} failed', getattr(error, 'traceback', None))
            self._windows.compare_again(entry, window)
            return
        if found.is_copy:
            self._windows.note_copy(entry, window)
        elif found.is_copy is None:
            self._failures.warn_once(
                'compare', f'{entry.path} and later files stay, though they are uploaded: {found.why} ({entry.remote})'
            )
        elif self._windows.compare_again(entry, window):
            self._record_failed(entry, window, f'{entry.path} was uploaded to {entry.remote}, but {found.why}')

    @staticmethod
    def _ask_for_copy(destination: Destination, path: Path, address: str) -> Comparison:
        if isinstance(destination, FsspecDestination):
            return _process.compare(destination, path, address)
        return destination.compare(path, address)

    @staticmethod
    def _send(destination: Destination, path: Path, address: str) -> Sent:
        if isinstance(destination, FsspecDestination):
            return _process.upload(destination, path, address)
        return destination.upload(path, address)

    def _confirm(self) -> Optional[bool]:
        """Look for the files that were handed over to a logger; True if its store has all, None if that can't be found out."""
        if not self._confirming.acquire(blocking=False):
            return False  # another thread is looking
        try:
            for entry, window in self._windows.files('handed_over'):
                is_stored = self._is_stored(entry)
                if not is_stored:
                    return is_stored  # files arrive in order
                self._record(replace(entry, status='uploaded'), window)
        finally:
            self._confirming.release()
        return True

    def _is_stored(self, entry: Entry) -> Optional[bool]:
        destination = self._folder.destination
        assert destination is not None and entry.remote is not None and entry.bytes is not None
        try:
            with only_exceptions():
                return destination.has(entry.remote, entry.bytes)
        except Exception:  # a store's client may raise anything
            log_error(f'looking for {entry.remote} failed')
            return False

    def _record(self, entry: Entry, window: WindowFiles) -> None:
        self._folder.record(entry)
        self._windows.update_file(entry, window)
