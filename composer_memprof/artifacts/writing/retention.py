"""Retention: the files of the newest windows stay on this disk, and all files that are still to be uploaded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Optional

from composer_memprof.artifacts.reading.manifest import Entry, Status
from composer_memprof.artifacts.writing.folder import ArtifactFolder

#: How the kind of a file ends that a search beside the windows has written.
NOTE = '.growing'


@dataclass
class WindowFiles:
    """The files of one window, which are kept or removed together.

    Args:
        entries (list[Entry]): of the files.
        compared (set[str]): the paths of uploaded files that the store was asked for, or is being asked for.
        copied (set[str]): the paths of files of which the store has a copy.
    """

    entries: list[Entry] = field(default_factory=list)
    compared: set[str] = field(default_factory=set)
    copied: set[str] = field(default_factory=set)

    @property
    def not_uploaded(self) -> list[str]:
        """The addresses of files that are still to be uploaded, or not known to be uploaded."""
        return [entry.remote for entry in self.entries if entry.remote is not None and entry.status != 'uploaded']

    @property
    def is_note(self) -> bool:
        """True for the file of a search beside the windows, such as HostRSS's ``….growing.json``, which is no window."""
        return bool(self.entries) and all(entry.kind.endswith(NOTE) for entry in self.entries)

    @property
    def may_be_removed(self) -> bool:
        """True if the store has a copy of each file that was to be uploaded."""
        return all(
            entry.remote is None or (entry.status == 'uploaded' and entry.path in self.copied) for entry in self.entries
        )


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
        #: The manifest that lists those files. If somebody removed it with its folder, the files are gone too.
        self._settled_in: object = None

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
            settled = self._settled if self._settled_in == self._folder.manifest.identity() else 0
            paths = [self._folder.path / entry.path for window in self._windows for entry in window.entries]
            return settled + sum(path.exists() for path in paths)

    def has_any_to_compare(self) -> bool:
        """True if uploaded files of old windows stay until the store was asked for them."""
        with self._lock:
            return bool(self._to_compare())

    def take_to_compare(self) -> list[tuple[Entry, WindowFiles]]:
        """The uploaded files of old windows that the store must be asked for, each with its window.

        Each file is given once. Call :meth:`note_copy` or :meth:`compare_again` with the answer about it.
        """
        with self._lock:
            taken = self._to_compare()
            for entry, window in taken:
                window.compared.add(entry.path)
            return taken

    def note_copy(self, entry: Entry, window: WindowFiles) -> None:
        """The store has a copy of the file."""
        with self._lock:
            window.copied.add(entry.path)

    def compare_again(self, entry: Entry, window: WindowFiles) -> bool:
        """The store has no copy, or gave no answer: it must be asked again once the file counts as uploaded.

        Returns:
            bool: False if a later window has replaced the file meanwhile.
        """
        with self._lock:
            window.compared.discard(entry.path)
            return entry in window.entries

    def _to_compare(self) -> list[tuple[Entry, WindowFiles]]:
        return [
            (entry, window)
            for window in self._old()
            for entry in window.entries
            if entry.status == 'uploaded' and entry.path not in window.compared
        ]

    def _old(self) -> list[WindowFiles]:
        """The windows beyond the newest ``keep``, and the notes beyond the newest one: it says what the others said."""
        if self._keep < 0:
            return []
        # Without uploads, keep=0 would lose every file.
        keep = self._keep if self._folder.takes_uploads() else max(self._keep, 1)
        notes = [window for window in self._windows if window.is_note]
        windows = [window for window in self._windows if not window.is_note]
        return [*windows[: max(len(windows) - keep, 0)], *notes[: max(len(notes) - min(keep, 1), 0)]]

    def remove_old(self) -> None:
        """Remove the files of windows beyond the newest ``keep``, if the store has copies of them."""
        if self._keep < 0:
            self._forget_settled()
            return
        with self._lock:  # also while files are removed: a later window may be about to replace one
            removed = [window for window in self._old() if window.may_be_removed]
            self._windows = [window for window in self._windows if window not in removed]
            for window in removed:
                self._remove(window)
        if self._on_removed is not None:
            for window in removed:
                self._on_removed([self._folder.path / entry.path for entry in window.entries])

    def _forget_settled(self) -> None:
        if self._folder.overwrite:  # a later window may replace files of this one
            return
        manifest = self._folder.manifest.identity()
        with self._lock:
            if manifest != self._settled_in:
                self._settled, self._settled_in = 0, manifest
            self._settled += sum(len(window.entries) for window in self._windows if not window.not_uploaded)
            self._windows = [window for window in self._windows if window.not_uploaded]

    def _remove(self, window: WindowFiles) -> None:
        for entry in window.entries:
            (self._folder.path / entry.path).unlink(missing_ok=True)
            self._folder.record(replace(entry, status='removed'), to_disk=False)
