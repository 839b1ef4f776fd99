"""Threads that upload several files at once, so that the training does not wait for the network."""

from __future__ import annotations

import collections
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

from composer_memprof.artifacts.writing.deadlines import Deadline, exiting


@dataclass(frozen=True, eq=False)
class Upload:
    """One file to upload, or a question to a store.

    Args:
        run (Callable): uploads the file, and handles its own errors.
        owner (object): whose uploads :meth:`UploadPool.wait` waits for.
        bytes (int, optional): of the file; None for a question.
    """

    run: Callable[[], None]
    owner: object
    bytes: Optional[int] = None


@dataclass(frozen=True)
class Waiting:
    """Files that are still to be uploaded, and their bytes."""

    files: int
    bytes: int


class UploadPool:
    """Runs uploads on daemon threads, in the order in which they came. A thread lives as long as the pool has users.

    An upload holds names and no data, so that any number may wait.

    Args:
        name (str): of the threads.
        threads (Callable): returns the largest number of threads.
        on_end (Callable, optional): called when neither users nor uploads are left.
    """

    def __init__(self, name: str, threads: Callable[[], int], on_end: Callable[[], None] = lambda: None) -> None:
        self._name = name
        self._limit = threads
        self._on_end = on_end
        self._changed = threading.Condition()
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._users = 0
        self._threads: list[threading.Thread] = []
        self._queue: collections.deque[Upload] = collections.deque()
        self._running: list[Upload] = []

    def acquire(self) -> None:
        """Add a user."""
        with self._changed:
            if self._pid != os.getpid():  # in a forked child the parent's threads do not exist
                self._reset()
            self._users += 1

    def release(self) -> None:
        """Remove a user. After the last one the threads end, once the queue is empty."""
        with self._changed:
            self._users -= 1
            self._changed.notify_all()
            idle = self._users == 0 and not self._queue and not self._running
            ending = list(self._threads) if idle else []
        if idle:
            self._on_end()
        for thread in ending:
            thread.join(timeout=1)

    def submit(self, upload: Upload) -> None:
        """Queue an upload. If no thread can start, :meth:`wait` runs it; at interpreter exit it runs now."""
        with self._changed:
            self._queue.append(upload)
            if len(self._running) + len(self._queue) > len(self._threads) < self._limit():
                self._start_thread()
            has_thread = bool(self._threads)
            self._changed.notify()
        if not has_thread and exiting():
            self._run_next()

    def run_here_without_threads(self) -> None:
        """Run the queued uploads on this thread if no other thread could be started."""
        while not self._threads and self._queue:
            self._run_next()

    def left(self, owner: Optional[object] = None) -> Waiting:
        """The files of ``owner`` that are left; without an owner, all files."""
        sizes = [upload.bytes for upload in self._left(owner) if upload.bytes is not None]
        return Waiting(len(sizes), sum(sizes))

    def _left(self, owner: Optional[object]) -> list[Upload]:
        with self._changed:
            return [upload for upload in [*self._running, *self._queue] if owner in (None, upload.owner)]

    def wait(self, owner: object, deadline: Deadline, each_second: Callable[[], None] = lambda: None) -> bool:
        """Wait until ``owner`` has nothing left to upload, or until ``deadline``; True if nothing is left.

        ``each_second`` is called about once a second during the wait.
        """
        if threading.current_thread() in self._threads:  # a Trainer that nobody closed was collected here
            return not self._left(owner)
        while self._left(owner):
            each_second()
            seconds = deadline.left()
            if not seconds:
                return False
            with self._changed:
                if not self._threads:
                    self._start_thread()
                has_thread = bool(self._threads)
                if has_thread:
                    self._changed.wait(min(seconds, 1.0))
            if not has_thread:
                self._run_next()
        return True

    def _start_thread(self) -> None:
        if exiting():
            return
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # a limit on threads
            return
        self._threads.append(thread)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    if self._users <= 0:
                        self._threads.remove(threading.current_thread())
                        return
                    self._changed.wait()
            self._run_next()

    def _run_next(self) -> None:
        with self._changed:
            if not self._queue:  # another thread was faster
                return
            upload = self._queue.popleft()
            self._running.append(upload)
        try:
            upload.run()
        finally:
            with self._changed:
                self._running.remove(upload)
                self._changed.notify_all()
                is_last = self._users <= 0 and not self._queue and not self._running
            if is_last:
                self._on_end()
