"""The artifact store of one callback: what callbacks call to write, list, upload and keep files.

Nearly all work happens off the training thread. A part passes ``store``, ``writing.writer`` (queue and child),
``writing.parts`` (file and manifest) and ``outcomes`` (upload, retention, failures), in this order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Optional

from composer_memprof.artifacts.naming.compression import Compress
from composer_memprof.artifacts.naming.names import Naming, Stamp
from composer_memprof.artifacts.outcomes import OnSaved, Outcomes
from composer_memprof.artifacts.reading.attempts import End
from composer_memprof.artifacts.uploading.destinations import Destination
from composer_memprof.artifacts.uploading.uploader import Uploader
from composer_memprof.artifacts.writing.child.work import ReadAtFork
from composer_memprof.artifacts.writing.deadlines import Deadline
from composer_memprof.artifacts.writing.earlier_attempts import close_earlier
from composer_memprof.artifacts.writing.failures import Failures
from composer_memprof.artifacts.writing.folder import ArtifactFolder
from composer_memprof.artifacts.writing.growing_file import GrowingFile
from composer_memprof.artifacts.writing.parts import Part
from composer_memprof.artifacts.writing.retention import KeptWindows
from composer_memprof.artifacts.writing.writer import Writer, fork_next_writer, hand_over_windows

__all__ = ['ArtifactStore', 'GrowingFile', 'OnSaved', 'Part', 'fork_next_writer', 'hand_over_windows']

#: Seconds that the close waits for files that are still to be written.
_WRITE_TIMEOUT_S = 600.0
#: Seconds after which the close says why it takes long.
_LONG_CLOSE_S = 2.0


class ArtifactStore:
    """Keeps the files of one callback in one run.

    Args:
        folder (Path): of the run. Nothing is created in it before the first file.
        naming (Naming): of the files.
        destination (Destination, optional): where they are uploaded.
        overwrite (bool): replace files of the same name; otherwise a new file gets ``.2``, ``.3``, …
        keep (int): how many windows' files stay on this disk once they are uploaded; -1 for all.
        waits_for_room (bool): a window for which there is no room holds the training up; otherwise it is skipped.
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
        self._waits_for_room = waits_for_room
        self._files = ArtifactFolder(self.folder, naming, destination, overwrite)
        self._failures = Failures(self.folder, on_failure)
        self._windows = KeptWindows(self._files, keep, on_removed)
        self._writer = Writer(self._files, self._failures)
        self._uploader = Uploader(self._files, self._windows, self._failures)
        self._outcomes = Outcomes(self._files, self._writer, self._windows, self._uploader, self._failures)

    def save(
        self,
        parts: Sequence[Part],
        stamp: Stamp,
        *,
        inline: bool = False,
        on_saved: Optional[OnSaved] = None,
        read_at_fork: Optional[ReadAtFork] = None,
    ) -> None:
        """Write a window's files. A process that the user's code has forked writes none.

        Args:
            parts (Sequence[Part]): the files, the main one first.
            stamp (Stamp): the batch in their names.
            inline (bool): write on the calling thread, because the files are needed when this returns.
            on_saved (Callable, optional): called with the paths by kind, once the files are complete.
            read_at_fork (ReadAtFork, optional): data that must be read now. The child is forked and reads it at once;
                it writes after the windows before it.
        """
        if not self._files.is_of_this_process():
            return
        self._outcomes.count_taken(parts[0].kind)
        if self._files.overwrite:
            for part in parts:
                self._windows.replace_file(part.file_in(self._files, stamp).name(1))
        self._writer.write(
            parts,
            stamp,
            lambda written: self._outcomes.finish(parts, stamp, written, on_saved),
            inline=inline,
            read_at_fork=read_at_fork,
        )
        self._close_earlier()

    def grow(
        self, kind: str, suffix: str, stamp: Stamp, *, compress: Compress = False, naming: Optional[Naming] = None
    ) -> GrowingFile:
        """A file that is listed as ``open``. If the run is killed, the lines written so far remain."""
        self._outcomes.count_taken(kind)
        file = self._files.file(kind, suffix, stamp, naming)
        if self._files.overwrite:
            self._windows.replace_file(file.name(1))
        growing = GrowingFile(self._files, self._writer, self._outcomes.finish, file, compress)
        self._close_earlier()
        return growing

    def _close_earlier(self) -> None:
        """Close what earlier attempts of the run have left open, once for all stores of the folder."""
        manifest = self._files.manifest
        if manifest.has_earlier:
            manifest.has_earlier = False
            self._writer.run(lambda: close_earlier(manifest))

    def note_failure(self, end: End, error: str, line: Optional[str], batch: int) -> None:
        """List at once why ``fit`` has failed; see :class:`Attempt` for the arguments."""
        self._files.manifest.note_failure(end, error, line, batch)

    def note_success(self) -> None:
        """A ``fit`` has ended well."""
        self._files.manifest.note_success()

    def why_no_room(self) -> Optional[str]:
        """Why no further window should be recorded now; None if there is room. Ask before each window."""
        return self._writer.why_no_room(self._waits_for_room)

    def leave_out(self, part: Part, stamp: Stamp, reason: str) -> None:
        """List a window as skipped, and count it for the next warning; ``part`` would have been its main file."""
        self._outcomes.skip(part, stamp, reason)

    def list_skipped(self, part: Part, stamp: Stamp, reason: str) -> None:
        """Record a skipped window without warning; the caller has already warned."""
        self._outcomes.list_skipped(part, stamp, reason)

    def warn_of_left_out(self) -> None:
        """Give one warning that counts the windows left out since the last call."""
        self._outcomes.warn_of_skipped()

    def report_lost_folder(self, error: BaseException) -> None:
        """Warn that nothing can be written to the folder any more, unless another callback has done so."""
        self._failures.report_lost_folder(error)

    def flush(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until all windows handed over so far are written; True if they are."""
        return self._writer.wait(Deadline(timeout, if_leaving=timeout))

    def count_files(self) -> int:
        """The number of the store's complete files on this disk."""
        return self._windows.count_files()

    def close(self, timeout: float) -> None:
        """Wait for files that are still to be written, and up to ``timeout`` seconds for uploads.

        The stores of a Trainer share these seconds. At interpreter exit both waits together take at most ``timeout``,
        because a launcher kills the job soon after.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._wait_for_writing(timeout)
            self._outcomes.warn_of_skipped()
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
