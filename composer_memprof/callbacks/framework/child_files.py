"""Files that processes of the user write about themselves, begun in a window; some of them outlive it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class ChildFile:
    """What the process ``pid`` writes, whole once that has ended."""

    path: Path
    pid: int

    def is_whole(self) -> bool:
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def remove_if_in(self, paths: Collection[object]) -> None:
        """Once it is saved under another name: ``paths`` are what was saved."""
        if paths:
            self.path.unlink(missing_ok=True)


def child_files(folder: Path, name: str) -> Iterator[ChildFile]:
    """Those in ``folder`` whose name is the pattern ``name``, whose only group is the process id."""
    for path in sorted(folder.glob('*')) if folder.is_dir() else ():
        match = re.fullmatch(name, path.name)
        if match:
            yield ChildFile(path, int(match.group(1)))
