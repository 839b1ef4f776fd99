"""Writes the parts of a window: each whole under a hidden name, then under its own name, then into the manifest.

It runs in a forked child if possible, because it computes; otherwise on a worker thread.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Optional

from composer_memprof.artifacts.naming.compression import Compress, add_suffix, codec_for, compress_file
from composer_memprof.artifacts.naming.names import Naming, Stamp
from composer_memprof.artifacts.reading.manifest import Entry
from composer_memprof.artifacts.writing.child.file_descriptors import explained, retry_if_out_of_descriptors
from composer_memprof.artifacts.writing.disk import move_to_new, sync_and_digest
from composer_memprof.artifacts.writing.failures import is_lost_folder, raising_lost_folder
from composer_memprof.artifacts.writing.folder import ArtifactFile, ArtifactFolder
from composer_memprof.artifacts.writing.temporary_files import remove_temporary, temporary_name


@dataclass(frozen=True)
class Part:
    """One file of a window.

    Args:
        kind (str): in the manifest: ``memory_snapshot``, ``memory_snapshot.page``.
        suffix (str): the end of its name.
        write (Callable): writes the whole file to the path it is given. It may run in a forked child.
        compress (bool | str): the codec; its suffix is appended to the name.
        naming (Naming, optional): if it differs from the store's.
    """

    kind: str
    suffix: str
    write: Callable[[Path], object]
    compress: Compress = False
    naming: Optional[Naming] = None

    def file_in(self, folder: ArtifactFolder, stamp: Stamp) -> ArtifactFile:
        """What the part's name and its line in the manifest of ``folder`` are made from."""
        return folder.file(self.kind, add_suffix(self.suffix, self.compress), stamp, self.naming)


@dataclass(frozen=True)
class WrittenFile:
    """The result of writing one part: its entry in the manifest, or the error.

    Args:
        entry (Entry, optional): of the file, if it was written.
        error (str): why it was not written.
        traceback (str): of the error, as text, because the error may come from a child process.
        folder_is_lost (bool): the folder accepts no file, so the other parts would fail too.
        why_skipped (str): why the whole window was skipped.
    """

    entry: Optional[Entry] = None
    error: str = ''
    traceback: str = ''
    folder_is_lost: bool = False
    why_skipped: str = ''

    def as_dict(self) -> dict[str, Any]:
        """The result as a child sends it to its parent, in JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, sent: dict[str, Any]) -> WrittenFile:
        """The result that a child has sent."""
        entry = sent['entry']
        return cls(**{**sent, 'entry': None if entry is None else Entry(**entry)})


def write_parts(
    folder: ArtifactFolder, parts: Sequence[Part], stamp: Stamp, number: Optional[int] = None
) -> Iterator[WrittenFile]:
    """Write the parts of one window, one after the other.

    Args:
        folder (ArtifactFolder): that receives the files.
        parts (Sequence[Part]): of one window.
        stamp (Stamp): the batch in their names.
        number (int, optional): the number in their names. Default: the first that is free for all parts.
    """
    files = [part.file_in(folder, stamp) for part in parts]
    number = folder.free_number(files) if number is None else number
    for part, file in zip(parts, files):
        yield _write_part(folder, part, file, number)


def _write_part(folder: ArtifactFolder, part: Part, file: ArtifactFile, number: int) -> WrittenFile:
    try:
        return WrittenFile(_write_whole(folder, part, file, number))
    except Exception as error:  # the other parts are still written
        if is_lost_folder(error):
            return WrittenFile(error=str(error), folder_is_lost=True)
        return WrittenFile(error=f'{type(error).__name__}: {explained(error)}', traceback=traceback.format_exc())


def _write_whole(folder: ArtifactFolder, part: Part, file: ArtifactFile, number: int) -> Entry:
    with _listed_temporary(folder, file) as temporary:
        written = _write_temporary(temporary, part)
        size, sha256 = retry_if_out_of_descriptors(lambda: sync_and_digest(written))
        with raising_lost_folder():
            move = os.replace if folder.overwrite else move_to_new
            name, _ = folder.claim_name(file, number, partial(move, written))
            entry = folder.saved_entry(file, name, size, sha256)
            folder.record_in_any_process(entry)
        return entry


@contextlib.contextmanager
def _listed_temporary(folder: ArtifactFolder, file: ArtifactFile) -> Iterator[Path]:
    """The path of a temporary file in which to write ``file``. The manifest lists it; it is removed after the block."""
    path = folder.path / temporary_name(file.kind)
    entry = folder.unfinished_entry(file, path.name)
    with raising_lost_folder():
        folder.path.mkdir(parents=True, exist_ok=True)
        retry_if_out_of_descriptors(lambda: folder.record_in_any_process(entry, to_disk=False))
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):  # `push` sees that the file is gone, or removes it
            retry_if_out_of_descriptors(lambda: remove_temporary(path))
            folder.record_in_any_process(replace(entry, status='removed'), to_disk=False)


def _write_temporary(temporary: Path, part: Part) -> Path:
    """Write a part to a temporary file. A compressed part is in a second file; returns the path of the final one."""
    retry_if_out_of_descriptors(lambda: part.write(temporary))
    codec = codec_for(part.compress)
    if codec is None:
        return temporary
    compressed = temporary.with_suffix(codec.suffix)
    retry_if_out_of_descriptors(lambda: compress_file(temporary, compressed, codec))
    return compressed
