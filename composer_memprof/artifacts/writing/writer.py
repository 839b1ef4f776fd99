"""The queue of windows to write: one at a time, each in a forked child, for whose results a worker thread waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Optional

from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.artifacts.writing.child.file_descriptors import is_out_of_descriptors
from composer_memprof.artifacts.writing.child.fork import Child, fork, hurry
from composer_memprof.artifacts.writing.child.memory import why_no_memory
from composer_memprof.artifacts.writing.child.work import ReadAtFork
from composer_memprof.artifacts.writing.deadlines import Deadline, exiting
from composer_memprof.artifacts.writing.failures import Failures
from composer_memprof.artifacts.writing.folder import ArtifactFolder
from composer_memprof.artifacts.writing.parts import Part, WrittenFile, write_parts
from composer_memprof.artifacts.writing.skipped_windows import NO_ROOM
from composer_memprof.artifacts.writing.temporary_files import clear_unfinished
from composer_memprof.artifacts.writing.worker_thread import Job, WorkerThread
from composer_memprof.messages import errors_logged

#: The thread for windows, shared by all stores. A window holds recorded data until it is written, so few may wait.
_windows = WorkerThread('memprof-writer', capacity=4)
#: The thread for work that is quick and holds little data, so that it does not pile up behind a slow window.
_small_work = WorkerThread('memprof-lister')

#: Seconds that ``on_full='wait'`` holds the training up for one window, at most.
_ROOM_TIMEOUT_S = 3600.0


def fork_next_writer() -> None:
    """Fork the child that writes the next window if the last one is done. Call it often on the training thread."""
    _windows.prepare_next()


def hand_over_windows() -> None:
    """Fork the children of all windows that wait, because the training thread may not call again for a long time."""
    _windows.prepare_all(lambda: why_no_memory() is None)


class Writer:
    """Writes the windows of one store.

    Args:
        folder (ArtifactFolder): that takes the files.
        failures (Failures): warns of errors.
    """

    def __init__(self, folder: ArtifactFolder, failures: Failures) -> None:
        self._folder = folder
        self._failures = failures
        #: True once the store has written a window.
        self._writes_windows = False
        _windows.acquire()
        _small_work.acquire()

    def write(
        self,
        parts: Sequence[Part],
        stamp: Stamp,
        on_written: Callable[[Sequence[WrittenFile]], None],
        *,
        inline: bool,
        read_at_fork: Optional[ReadAtFork],
    ) -> None:
        """Write a window's files, then call ``on_written`` with the result, in the order of ``parts``."""
        window = _WindowWriting(self._folder, parts, stamp)
        self._writes_windows = True

        def finish() -> None:
            self._failures.guard(lambda: on_written(window.results()))

        self._failures.guard(self._open_manifest)
        if inline or exiting():
            finish()
        elif read_at_fork is not None:
            if not window.fork(read_at_fork) and not window.why_skipped:
                read_at_fork.read()
            _windows.submit(Job(finish, owner=self))
        else:
            _windows.submit(Job(finish, owner=self, prepare=window.fork))
            _windows.prepare_next()

    def _open_manifest(self) -> None:
        """Open the manifest early, because its lock shows that the run is alive. If that fails, the first entry opens it."""
        try:
            self._folder.manifest.open()
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise

    def run(self, work: Callable[[], None], *, after_windows: bool = False) -> None:
        """Run ``work``, which is quick and holds little, on a worker thread.

        ``after_windows``: run it after the windows of this store, because ``work`` decides which files are kept.
        """
        thread = _windows if after_windows and self._writes_windows else _small_work
        thread.submit(Job(lambda: self._failures.guard(work), owner=self, takes_room=False))

    def why_no_room(self, wait: bool = False) -> Optional[str]:
        """Why no further window can be accepted now; None if one can. ``wait``: wait until there is room."""
        if wait:
            _windows.wait_for_room(self, Deadline(_ROOM_TIMEOUT_S, if_leaving=0), hurry)
        return why_no_memory() if _windows.has_room(self) else NO_ROOM

    def wait(self, deadline: Deadline, each_second: Callable[[], None] = lambda: None) -> bool:
        """Wait for queued windows and work until ``deadline``; True if none is left."""

        def look() -> None:
            hurry()
            each_second()

        if _small_work.is_current():  # a Trainer that nobody closed was collected here, where nothing may wait
            hand_over_windows()
        else:  # first, because a window may leave small work behind
            _windows.wait(self, deadline, look)
        return _small_work.wait(self, deadline, look) and not _windows.has_jobs(self)

    def release(self) -> None:
        _windows.release()
        _small_work.release()


class _WindowWriting:
    """The writing of one window: forked on the training thread, waited for on the worker thread."""

    def __init__(self, folder: ArtifactFolder, parts: Sequence[Part], stamp: Stamp) -> None:
        self._folder = folder
        self._parts = parts
        self._stamp = stamp
        self._child: Optional[Child] = None
        #: Why the window is skipped although it was accepted.
        self.why_skipped = ''

    def fork(self, read_at_fork: Optional[ReadAtFork] = None) -> bool:
        """Fork the child, which writes when its turn comes; False if no child can be forked."""
        self.why_skipped = why_no_memory() or ''
        if self.why_skipped:
            return False
        lock = self._folder.manifest.descriptor
        self._child = fork(
            lambda: map(WrittenFile.as_dict, write_parts(self._folder, self._parts, self._stamp)),
            read_at_fork,
            in_turn=True,
            keep=() if lock is None else (lock,),
        )
        return self._child is not None

    def results(self) -> list[WrittenFile]:
        """Wait for the child, or write here if there is none."""
        if self.why_skipped:
            return [WrittenFile(why_skipped=self.why_skipped)] * len(self._parts)
        if self._child is None:
            return list(write_parts(self._folder, self._parts, self._stamp))
        return self._results_of(self._child)

    def _results_of(self, child: Child) -> list[WrittenFile]:
        """The results of the child. Parts that killed it are not written here, because they could kill the training."""
        written = [WrittenFile.from_dict(result) for result in child.results()]
        missing = len(self._parts) - len(written)
        if missing:
            with errors_logged('the files that a dead process left could not be cleared'):
                clear_unfinished(self._folder.manifest.path, of_process=child.pid)
        failed = WrittenFile(error=f'the process that wrote it died: {child.failure}', traceback=child.traceback)
        return [*written, *[failed] * missing]
