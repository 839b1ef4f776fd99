"""Files that the user's child processes write about themselves; a child may end after the window it started in."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class ChildFile:
    """The file that the process ``pid`` writes. It is complete once the process has ended."""

    path: Path
    pid: int

    def is_complete(self) -> bool:
        """Whether the process has ended."""
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def remove_if_saved(self, paths: Collection[object]) -> None:
        """Remove the file if it was saved under another name; ``paths`` are the saved files."""
        if paths:
            self.path.unlink(missing_ok=True)


def child_files(folder: Path, name: str) -> Iterator[ChildFile]:
    """The files in ``folder`` whose name matches the pattern ``name``; its only group is the process id."""
    for path in sorted(folder.glob('*')) if folder.is_dir() else ():
        match = re.fullmatch(name, path.name)
        if match:
            yield ChildFile(path, int(match.group(1)))
