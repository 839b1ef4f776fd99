"""The folder of one callback's artifacts: the names of its files, here and in the destination, and its manifest.

No other module picks a name or writes an entry during a run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional, TypeVar

from composer.utils import dist

from composer_memprof.artifacts.naming.names import Naming, Stamp
from composer_memprof.artifacts.reading.containment import inside
from composer_memprof.artifacts.reading.manifest import UNFINISHED, Entry, Manifest, Status, append_line, manifest_of
from composer_memprof.artifacts.reading.running import is_written
from composer_memprof.artifacts.uploading.destinations import Destination

_Made = TypeVar('_Made')


@dataclass(frozen=True)
class ArtifactFile:
    """What the name and the entry of a file are made from. ``suffix`` includes the codec's."""

    kind: str
    suffix: str
    stamp: Stamp
    naming: Naming

    def name(self, number: int) -> str:
        """The name relative to the folder; ``number`` above 1 avoids an existing file."""
        return self.naming.local(self.stamp, self.suffix, number)


@dataclass(frozen=True)
class NumberedName:
    """The name that a file got, relative to its folder, and the number in it (1 for none)."""

    name: str
    number: int


def is_taken(folder: Path) -> bool:
    """True if another process writes the files of this rank in the folder."""
    manifest = manifest_of(folder, dist.get_global_rank())
    return not Manifest.is_open_here(manifest) and is_written(manifest) is True


class ArtifactFolder:
    """Names files and lists them in the manifest. Nothing is created in it before the first file.

    Args:
        path (Path): absolute.
        naming (Naming): of files that have no naming of their own.
        destination (Destination, optional): where files are uploaded.
        overwrite (bool): replace files of the same name; otherwise a new file gets ``.2``, ``.3``, …
    """

    def __init__(self, path: Path, naming: Naming, destination: Optional[Destination], overwrite: bool) -> None:
        self.path = path
        self.naming = naming
        self.destination = destination
        self.overwrite = overwrite
        self._rank = dist.get_global_rank()
        self._pid = os.getpid()
        self.manifest = Manifest.acquire(path, self._rank)

    def is_of_this_process(self) -> bool:
        """False in a forked child: the files are its parent's."""
        return os.getpid() == self._pid

    def file(self, kind: str, suffix: str, stamp: Stamp, naming: Optional[Naming]) -> ArtifactFile:
        return ArtifactFile(kind, suffix, stamp, naming or self.naming)

    def takes_uploads(self) -> bool:
        """True if a destination accepts files."""
        return self.destination is not None and self.destination.accepts_files()

    # -- names --------------------------------------------------------------------------------------------------

    def free_number(self, files: Sequence[ArtifactFile]) -> int:
        """The first number that is free for all ``files``, so that a window's files have the same one."""
        number = 1
        while not self.overwrite and any(self._exists(file, number) for file in files):
            number += 1
        return number

    def _exists(self, file: ArtifactFile, number: int) -> bool:
        try:
            return (self.path / file.name(number)).exists()
        except (ValueError, OSError):  # the file can't have that name; writing it will raise the same error
            return False

    def claim_name(self, file: ArtifactFile, number: int, make: Callable[[Path], _Made]) -> tuple[NumberedName, _Made]:
        """Give ``file`` the name with ``number``, or with the next number that is free.

        Args:
            file (ArtifactFile): to name.
            number (int): the first to try.
            make (Callable): puts the file at a path and raises ``FileExistsError`` if the path is taken.

        Returns:
            tuple: the name, and what ``make`` returned.
        """
        while True:
            name = file.name(number)
            target = inside(self.path, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                return NumberedName(name, number), make(target)
            except FileExistsError:
                number += 1

    def create(self, file: ArtifactFile) -> tuple[NumberedName, int]:
        """Create an empty file; returns its name and its descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if self.overwrite else os.O_EXCL)
        flags |= getattr(os, 'O_BINARY', 0)
        return self.claim_name(file, 1, lambda target: os.open(target, flags, 0o644))

    def _remote_name(self, file: ArtifactFile, name: NumberedName) -> Optional[str]:
        if not self.takes_uploads():
            return None
        remote = file.naming.in_store(file.stamp, file.suffix, name.number, name.name)
        return remote.lstrip('/') if remote is not None else None

    # -- the manifest -------------------------------------------------------------------------------------------

    def unfinished_entry(self, file: ArtifactFile, path: str) -> Entry:
        """The entry of a temporary file at ``path``, in which ``file`` is being written."""
        return self._entry(replace(file, kind=file.kind + UNFINISHED), path, 'open')

    def open_entry(self, file: ArtifactFile, name: NumberedName) -> Entry:
        """The entry of a file that still grows."""
        return self._entry(file, name.name, 'open', self._remote_name(file, name))

    def saved_entry(self, file: ArtifactFile, name: NumberedName, size: int, sha256: str) -> Entry:
        return self._entry(file, name.name, 'saved', self._remote_name(file, name), size, sha256)

    def failed_entry(self, file: ArtifactFile) -> Entry:
        return self._entry(file, file.name(1), 'failed')

    def removed_entry(self, file: ArtifactFile, name: NumberedName) -> Entry:
        return self._entry(file, name.name, 'removed')

    def skipped_entry(self, file: ArtifactFile, reason: str) -> Entry:
        """The entry of a skipped window. No file has its path."""
        unwritten = replace(file, stamp=replace(file.stamp, mark=f'{file.stamp.mark}.skipped'))
        return replace(self._entry(unwritten, unwritten.name(1), 'skipped'), reason=reason)

    def _entry(
        self,
        file: ArtifactFile,
        path: str,
        status: Status,
        remote: Optional[str] = None,
        size: Optional[int] = None,
        sha256: Optional[str] = None,
    ) -> Entry:
        timestamp, run_name = file.stamp.timestamp, file.stamp.run_name
        epoch, batch = timestamp.epoch.value, timestamp.batch.value
        return Entry(file.kind, path, remote, size, sha256, self._rank, run_name, epoch, batch, status)

    def record(self, entry: Entry, *, to_disk: bool = True) -> None:
        """Append ``entry`` to the manifest; ``to_disk``: wait until the disk has it."""
        self.manifest.append(self._with_address(entry), to_disk=to_disk)

    def record_in_any_process(self, entry: Entry, *, to_disk: bool = True) -> None:
        """Append ``entry`` in this process or in a forked child, where the lock of the manifest object may never be released."""
        if self.is_of_this_process():
            self.record(entry, to_disk=to_disk)
        else:
            append_line(self.manifest.path, self._with_address(entry), to_disk=to_disk)

    def _with_address(self, entry: Entry) -> Entry:
        """The entry with the address of its file, by which ``push`` finds the store if the run is killed."""
        if entry.remote is None or self.destination is None:
            return entry
        return replace(entry, remote=self.destination.known_address(entry.remote))
