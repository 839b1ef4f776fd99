"""The artifact store of one callback: what callbacks call to write, list, upload and keep files.

Nearly all of it happens off the training thread: writing in a forked child, waiting on worker threads.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Optional

from composer_memprof.artifacts.naming.compression import Compress
from composer_memprof.artifacts.naming.names import Naming, Stamp
from composer_memprof.artifacts.uploading.destinations import Destination
from composer_memprof.artifacts.uploading.uploader import Uploader
from composer_memprof.artifacts.writing.child.work import ReadAtFork
from composer_memprof.artifacts.writing.deadlines import Deadline
from composer_memprof.artifacts.writing.failures import Failures, LostFolderError
from composer_memprof.artifacts.writing.folder import ArtifactFolder
from composer_memprof.artifacts.writing.growing_file import GrowingFile
from composer_memprof.artifacts.writing.retention import KeptWindows, WindowFiles
from composer_memprof.artifacts.writing.skipped_windows import LeftOut
from composer_memprof.artifacts.writing.writer import Part, Writer, WrittenFile, fork_next_writer, hand_over_windows
from composer_memprof.messages import log_error

__all__ = ['ArtifactStore', 'GrowingFile', 'OnSaved', 'Part', 'fork_next_writer', 'hand_over_windows']

#: Called with the paths of a window's files by kind.
OnSaved = Callable[[dict[str, Path]], None]
#: How long the close waits for files that are still to be written.
_WRITE_TIMEOUT_S = 600.0
#: After this long the close says what it waits for.
_LONG_CLOSE_S = 2.0


class ArtifactStore:
    """Keeps the files of one callback in one run.

    Args:
        folder (Path): of the run. Nothing is created in it before the first file.
        naming (Naming): of the files.
        destination (Destination, optional): where they are uploaded.
        overwrite (bool): replace files of the same name; otherwise a new file gets ``.2``, ``.3``, …
        keep (int): how many windows' files stay on this disk once they are uploaded; -1 for all.
        waits_for_room (bool): a window for which there is no room holds the training up; otherwise it is left out.
        on_failure (Callable, optional): called when nothing can be written to the folder any more.
        on_removed (Callable, optional): called with the paths of each window that ``keep`` removed.
    """

    def __init__(
        self,
        folder: Path,
        naming: Naming,
        destination: Optional[Destination] = None,
        *,
        overwrite: bool = False,
        keep: int = -1,
        waits_for_room: bool = False,
        on_failure: Optional[Callable[[BaseException], None]] = None,
        on_removed: Optional[Callable[[list[Path]], None]] = None,
    ) -> None:
        self.folder = folder.absolute()  # the training may change its working directory
        self.naming = naming
        self._closed = False
        self._files = ArtifactFolder(self.folder, naming, destination, overwrite)
        self._failures = Failures(self.folder, on_failure)
        self._windows = KeptWindows(self._files, keep, on_removed)
        self._writer = Writer(self._files, self._failures)
        self._waits_for_room = waits_for_room
        self._left_out = LeftOut()
        self._uploader = Uploader(self._files, self._windows, self._failures)

    def save(
        self,
        parts: Sequence[Part],
        stamp: Stamp,
        *,
        inline: bool = False,
        on_saved: Optional[OnSaved] = None,
        read_at_fork: Optional[ReadAtFork] = None,
    ) -> None:
        """Write a window's files.

        Args:
            parts (Sequence[Part]): the files, the main one first.
            stamp (Stamp): the batch in their names.
            inline (bool): write on the calling thread, because the files are needed when this returns.
            on_saved (Callable, optional): called with the paths by kind, once the files are complete.
            read_at_fork (ReadAtFork, optional): data that must be read now. The child is forked and reads it at once;
                it writes after the windows before it.
        """
        self._left_out.count_taken(parts[0].kind)
        self._writer.write(
            parts,
            stamp,
            lambda written: self._keep(parts, stamp, written, on_saved),
            inline=inline,
            read_at_fork=read_at_fork,
        )

    def why_no_room(self) -> Optional[str]:
        """Why no further window should be recorded now; None: there is room. Ask before each."""
        return self._writer.why_no_room(self._waits_for_room)

    def leave_out(self, part: Part, stamp: Stamp, reason: str, *, was_taken: bool = False) -> None:
        """A window is not recorded, or not written; ``part`` would have been its main file. It is listed as skipped."""
        self._left_out.add(part.kind, reason, was_taken=was_taken)
        self.list_skipped(part, stamp, reason)

    def list_skipped(self, part: Part, stamp: Stamp, reason: str) -> None:
        """As :meth:`leave_out`, for a window of which another warning tells."""
        file = part.file_in(self._files, stamp)
        self._writer.run(lambda: self._files.record(self._files.skipped_entry(file, reason)))

    def report_lost_folder(self, error: BaseException) -> None:
        """Warn that nothing can be written to the folder any more, unless another callback has done so."""
        self._failures.report_lost_folder(error)

    def warn_of_left_out(self) -> None:
        """One warning that counts the windows left out since the last call."""
        self._left_out.warn()

    def flush(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until what was handed over is written. True: it is."""
        return self._writer.wait(Deadline(timeout, if_leaving=timeout))

    def grow(
        self, kind: str, suffix: str, stamp: Stamp, *, compress: Compress = False, naming: Optional[Naming] = None
    ) -> GrowingFile:
        """A file that is listed as ``open``. If the run is killed, what was written to it stays."""
        self._left_out.count_taken(kind)
        file = self._files.file(kind, suffix, stamp, naming)
        if self._files.overwrite:
            self._windows.replace_file(file.name(1))
        return GrowingFile(self._files, self._writer, self._keep, file, compress)

    def count_files(self) -> int:
        """How many complete files it has on this disk."""
        return self._windows.count_files()

    def close(self, timeout: float) -> None:
        """Wait for files that are still to be written, and up to ``timeout`` seconds for uploads.

        The stores of a Trainer share these seconds. At interpreter exit all of it together takes at most ``timeout``,
        because a launcher kills the job soon after.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._wait_for_writing(timeout)
            self._left_out.warn()
            self._uploader.close(timeout)
        finally:
            self._files.manifest.release()
            self._writer.release()
            self._uploader.release()

    def _wait_for_writing(self, timeout: float) -> None:
        began = time.monotonic()

        def explain() -> None:
            if time.monotonic() - began > _LONG_CLOSE_S:
                self._failures.warn_once('writing', f'waiting for the last files to be written to {str(self.folder)!r}')

        self._writer.wait(Deadline(_WRITE_TIMEOUT_S, if_leaving=timeout), explain)

    def _keep(
        self,
        parts: Sequence[Part],
        stamp: Stamp,
        written: Sequence[WrittenFile],
        on_saved: Optional[OnSaved] = None,
    ) -> None:
        """Upload and keep the parts of a window that were written; report the others."""
        if written[0].why_skipped:
            self.leave_out(parts[0], stamp, written[0].why_skipped, was_taken=True)
            return
        window = WindowFiles()
        for result in written:
            if result.entry is not None:
                self._windows.add_file(result.entry, window)
        if on_saved is not None:
            self._call(on_saved, {entry.kind: self.folder / entry.path for entry in window.entries})
        if window.entries:
            self._windows.add(window)
            self._uploader.send(window)
            self._windows.remove_old()
        for part, result in zip(parts, written):
            if result.entry is None:
                self._report_failed(part, stamp, result)

    def _report_failed(self, part: Part, stamp: Stamp, result: WrittenFile) -> None:
        if result.folder_is_lost:
            raise LostFolderError(result.error)
        what = f'{part.kind} of batch {stamp.timestamp.batch.value} could not be written'
        log_error(what, result.traceback)
        with contextlib.suppress(ValueError):  # there is no path that it could be listed under
            entry = self._files.failed_entry(part.file_in(self._files, stamp))
            if not _exists(self.folder / entry.path):  # else that is an earlier file's, and its entry must stay last
                self._files.record(entry)
        # After the entry: if that can't be written either, the warning is about the whole folder.
        self._failures.warn_once(part.kind, f'{what}: {result.error}')

    def _call(self, on_saved: OnSaved, paths: dict[str, Path]) -> None:
        try:
            on_saved(paths)
        except Exception as error:  # the files are complete, so uploads and retention go on
            log_error('processing saved files failed')
            names = ', '.join(map(str, paths.values()))
            self._failures.warn_once(
                'on_saved', f'{names} could not be processed after saving: {type(error).__name__}: {error}'
            )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long
        return False
