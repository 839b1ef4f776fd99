"""Retention: the files of the newest windows stay on this disk, and all files that are still to be uploaded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Optional

from composer_memprof.artifacts.reading.manifest import Entry, Status
from composer_memprof.artifacts.writing.folder import ArtifactFolder


@dataclass
class WindowFiles:
    """The files of one window, which are kept or removed together."""

    entries: list[Entry] = field(default_factory=list)

    @property
    def not_uploaded(self) -> list[str]:
        """The addresses of files that are still to be uploaded, or not known to be uploaded."""
        return [entry.remote for entry in self.entries if entry.remote is not None and entry.status != 'uploaded']


class KeptWindows:
    """The windows whose files are on this disk, oldest first.

    Args:
        folder (ArtifactFolder): that holds the files.
        keep (int): how many windows stay once they are uploaded; -1 for all.
        on_removed (Callable, optional): called with the paths of each window that was removed.
    """

    def __init__(self, folder: ArtifactFolder, keep: int, on_removed: Optional[Callable[[list[Path]], None]]) -> None:
        self._folder = folder
        self._keep = keep
        self._on_removed = on_removed
        self._lock = threading.Lock()
        self._windows: list[WindowFiles] = []
        #: The number of files in windows that are uploaded and kept for good. A long run has too many to remember them.
        self._settled = 0

    def replace_file(self, path: str) -> None:
        """With ``overwrite``, before a window's file replaces an older one: that file is not removed with its window."""
        with self._lock:
            for older in self._windows:
                older.entries = [old for old in older.entries if old.path != path]
            self._windows = [window for window in self._windows if window.entries]

    def add_file(self, entry: Entry, window: WindowFiles) -> None:
        if self._folder.overwrite:
            self.replace_file(entry.path)
        with self._lock:
            window.entries.append(entry)

    def add(self, window: WindowFiles) -> None:
        with self._lock:
            self._windows.append(window)

    def update_file(self, entry: Entry, window: WindowFiles) -> None:
        """Replace the window's entry of the same path."""
        with self._lock:
            window.entries = [entry if old.path == entry.path else old for old in window.entries]

    def not_uploaded(self) -> list[str]:
        """The addresses of files that are still to be uploaded."""
        with self._lock:
            return [address for window in self._windows for address in window.not_uploaded]

    def files(self, status: Status) -> list[tuple[Entry, WindowFiles]]:
        """The files with a status, each with its window."""
        with self._lock:
            return [(entry, window) for window in self._windows for entry in window.entries if entry.status == status]

    def count_files(self) -> int:
        """The number of files on this disk."""
        with self._lock:
            return self._settled + sum(len(window.entries) for window in self._windows)

    def remove_old(self) -> None:
        """Remove the files of windows beyond the newest ``keep``, if they are uploaded."""
        if self._keep < 0:
            self._forget_settled()
            return
        with self._lock:  # also while files are removed: a later window may be about to replace one
            # Without uploads, keep=0 would lose every file.
            keep = self._keep if self._folder.takes_uploads() else max(self._keep, 1)
            old = self._windows[: max(len(self._windows) - keep, 0)]
            removed = [window for window in old if not window.not_uploaded]
            self._windows = [window for window in self._windows if window not in removed]
            for window in removed:
                self._remove(window)
        if self._on_removed is not None:
            for window in removed:
                self._on_removed([self._folder.path / entry.path for entry in window.entries])

    def _forget_settled(self) -> None:
        if self._folder.overwrite:  # a later window may replace files of this one
            return
        with self._lock:
            self._settled += sum(len(window.entries) for window in self._windows if not window.not_uploaded)
            self._windows = [window for window in self._windows if window.not_uploaded]

    def _remove(self, window: WindowFiles) -> None:
        for entry in window.entries:
            (self._folder.path / entry.path).unlink(missing_ok=True)
            self._folder.record(replace(entry, status='removed'), to_disk=False)
