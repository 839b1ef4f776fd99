"""The outcome of each window: its files are kept and uploaded, or it is skipped, or parts of it failed.

This is the end of a window's way through the store; it begins in ``store`` and leads through ``writing.writer`` and
``writing.parts``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Optional

from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.artifacts.uploading.uploader import Uploader
from composer_memprof.artifacts.writing.failures import Failures, LostFolderError
from composer_memprof.artifacts.writing.folder import ArtifactFolder
from composer_memprof.artifacts.writing.parts import Part, WrittenFile
from composer_memprof.artifacts.writing.retention import KeptWindows, WindowFiles
from composer_memprof.artifacts.writing.skipped_windows import SkippedWindows
from composer_memprof.artifacts.writing.writer import Writer
from composer_memprof.messages import log_error

#: Called with the paths of a window's files by kind.
OnSaved = Callable[[dict[str, Path]], None]


class Outcomes:
    """Keeps and uploads the files of windows, lists skipped windows and failed parts, and warns of both.

    Args:
        folder (ArtifactFolder): of the files.
        writer (Writer): runs what appends to the manifest on its worker thread.
        windows (KeptWindows): decides which files stay on this disk.
        uploader (Uploader): uploads the files.
        failures (Failures): warns of parts that were not written.
    """

    def __init__(
        self, folder: ArtifactFolder, writer: Writer, windows: KeptWindows, uploader: Uploader, failures: Failures
    ) -> None:
        self._folder = folder
        self._writer = writer
        self._windows = windows
        self._uploader = uploader
        self._failures = failures
        self._skipped = SkippedWindows()

    def count_taken(self, kind: str) -> None:
        """Count a window, or a file that grows, that the store has accepted."""
        self._skipped.count_taken(kind)

    def skip(self, part: Part, stamp: Stamp, reason: str, *, was_taken: bool = False) -> None:
        """Count and list a skipped window, whose main file would have been ``part``.

        Args:
            part (Part): the main file.
            stamp (Stamp): the batch of the window.
            reason (str): why it was skipped.
            was_taken (bool): the window has been counted as accepted before.
        """
        self._skipped.add(part.kind, reason, was_taken=was_taken)
        self.list_skipped(part, stamp, reason)

    def list_skipped(self, part: Part, stamp: Stamp, reason: str) -> None:
        """List a skipped window without counting it for the warning."""
        file = part.file_in(self._folder, stamp)
        self._writer.run(lambda: self._folder.record(self._folder.skipped_entry(file, reason)))

    def warn_of_skipped(self) -> None:
        """Give one warning that counts the windows skipped since the last call."""
        self._skipped.warn()

    def finish(
        self,
        parts: Sequence[Part],
        stamp: Stamp,
        written: Sequence[WrittenFile],
        on_saved: Optional[OnSaved] = None,
    ) -> None:
        """Upload and keep the parts of a window that were written; report the others.

        Args:
            parts (Sequence[Part]): of the window, the main one first.
            stamp (Stamp): the batch of the window.
            written (Sequence[WrittenFile]): the result of each part.
            on_saved (Callable, optional): called with the paths of the written parts by kind.
        """
        if written[0].why_skipped:
            self.skip(parts[0], stamp, written[0].why_skipped, was_taken=True)
            return
        window = WindowFiles()
        for result in written:
            if result.entry is not None:
                self._windows.add_file(result.entry, window)
        if on_saved is not None:
            self._call(on_saved, {entry.kind: self._folder.path / entry.path for entry in window.entries})
        if window.entries:
            self._windows.add(window)
            self._uploader.send(window)
        for part, result in zip(parts, written):
            if result.entry is None:
                self._report_failed(part, stamp, result)

    def _report_failed(self, part: Part, stamp: Stamp, result: WrittenFile) -> None:
        if result.folder_is_lost:
            raise LostFolderError(result.error)
        what = f'{part.kind} of batch {stamp.timestamp.batch.value} could not be written'
        log_error(what, result.traceback)
        with contextlib.suppress(ValueError):  # no path is possible under which the part could be listed
            entry = self._folder.failed_entry(part.file_in(self._folder, stamp))
            if not _exists(self._folder.path / entry.path):  # an earlier file has that path; its entry must stay last
                self._folder.record(entry)
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
