"""Uploads saved files on a worker thread. What is not uploaded by the close is left to ``push``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from composer_memprof.artifacts.destinations import FsspecDestination
from composer_memprof.artifacts.exiting import Deadline, exiting, is_hurried
from composer_memprof.artifacts.failures import Failures
from composer_memprof.artifacts.folder import ArtifactFolder
from composer_memprof.artifacts.manifest import Entry
from composer_memprof.artifacts.push import push_at_exit
from composer_memprof.artifacts.retention import KeptWindows, WindowFiles
from composer_memprof.artifacts.worker_thread import Job, WorkerThread
from composer_memprof.messages import log_error

#: Shared by all stores. A job holds names only, so that many may wait.
_thread = WorkerThread('memprof-uploader', capacity=256)


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
        self._lock = threading.Lock()
        #: Files that found the queue full. They stay `saved` until the close, or for `push`.
        self._unsent: list[tuple[Entry, WindowFiles]] = []
        _thread.acquire()

    def send(self, window: WindowFiles) -> None:
        """Queue the window's files."""
        for entry in list(window.entries):
            if entry.remote is not None:
                self._send(entry, window)

    def send_unsent(self, deadline: Deadline) -> None:
        """At the close, queue the files that found the queue full, as it empties."""
        while self._unsent and deadline.left():
            with self._lock:
                entry, window = self._unsent.pop()
            self._send(entry, window)
            if self._unsent:
                time.sleep(0.05)

    def wait(self, deadline: Deadline, each_second: Callable[[], None] = lambda: None) -> None:
        """Wait for queued uploads until ``deadline``."""
        _thread.wait(self, deadline, each_second)

    def leave_to_push(self, timeout: float) -> None:
        """After the close waited ``timeout`` seconds: at interpreter exit upload the rest in a child, else say how to."""
        count = self._windows.count_not_uploaded()
        if not count or not isinstance(self._folder.destination, FsspecDestination):
            return
        if exiting():
            push_at_exit(self._folder.manifest.path, self._folder.destination.storage_options, timeout)
        else:
            reason = 'because of Ctrl-C' if is_hurried() else f'within close_timeout={timeout:g} s'
            self._failures.warn_once(
                'upload',
                f'{count} file(s) were not uploaded {reason}. They are kept. '
                f'Upload them with: composer-memprof push {self._folder.path}',
            )

    def release(self) -> None:
        _thread.release()

    def _send(self, entry: Entry, window: WindowFiles) -> None:
        if _thread.has_room():
            _thread.submit(Job(lambda: self._upload(entry, window), owner=self))
        else:
            with self._lock:
                self._unsent.append((entry, window))

    def _upload(self, entry: Entry, window: WindowFiles) -> None:
        self._failures.guard(lambda: self._upload_file(entry, window))
        self._failures.guard(self._windows.remove_old)

    def _upload_file(self, entry: Entry, window: WindowFiles) -> None:
        destination = self._folder.destination
        assert destination is not None and entry.remote is not None
        if exiting() and isinstance(destination, FsspecDestination):
            return  # an fsspec client needs threads, which no longer start; `push` uploads it in a child process
        try:
            name = destination.upload(self._folder.path / entry.path, entry.remote)
        except Exception as error:  # a destination's client may raise anything
            log_error(f'uploading {entry.path} failed')
            self._record(replace(entry, status='failed'), window)
            self._failures.warn_once(
                'upload',
                f'uploading {entry.path} to {entry.remote} failed: {type(error).__name__}: {error}. The file is kept. '
                f'Upload it later with: composer-memprof push {self._folder.path}',
            )
        else:
            self._record(replace(entry, remote=name, status='uploaded'), window)

    def _record(self, entry: Entry, window: WindowFiles) -> None:
        self._folder.record(entry)
        self._windows.update_file(entry, window)
