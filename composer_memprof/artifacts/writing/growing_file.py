"""A file that grows line by line and can be read at any time."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Optional

from composer_memprof.artifacts.naming.compression import Compress, codec_for
from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.artifacts.reading.manifest import Entry
from composer_memprof.artifacts.writing.child.file_descriptors import retry_if_out_of_descriptors
from composer_memprof.artifacts.writing.disk import link, sync_and_digest
from composer_memprof.artifacts.writing.folder import ArtifactFile, ArtifactFolder
from composer_memprof.artifacts.writing.parts import Part, WrittenFile, write_parts
from composer_memprof.artifacts.writing.writer import Writer

#: Called with the parts, stamp and results of a window that was written.
OnWritten = Callable[[Sequence[Part], Stamp, Sequence[WrittenFile]], None]


class GrowingFile:
    """Lines appended to a file that exists from the start. Get it from :meth:`ArtifactStore.grow`.

    Args:
        folder (ArtifactFolder): that takes the file.
        writer (Writer): completes the file on its worker thread.
        on_written (Callable): called with the complete file, to upload and keep it.
        file (ArtifactFile): its kind and the parts of its name.
        compress (bool | str): the codec with which it is compressed once it is complete.
    """

    def __init__(
        self,
        folder: ArtifactFolder,
        writer: Writer,
        on_written: OnWritten,
        file: ArtifactFile,
        compress: Compress,
    ) -> None:
        self._folder = folder
        self._writer = writer
        self._on_written = on_written
        self._file = file
        self._lock = threading.Lock()
        self._descriptor: Optional[int]
        self._name, self._descriptor = retry_if_out_of_descriptors(lambda: folder.create(self._file))
        path = self.path
        self._part = Part(file.kind, file.suffix, lambda target: shutil.copyfile(path, target), compress, file.naming)
        # Now, so that a run that is killed in the next moment leaves no unlisted file.
        folder.record(folder.open_entry(self._file, self._name), to_disk=False)

    def write(self, line: str) -> None:
        """Append ``line`` whole or not at all, from any thread. Does nothing after the close, or in a forked child.

        Raises:
            OSError: if the disk is full.
        """
        data = line.encode() + b'\n'
        with self._lock:
            if self._descriptor is None or not self._folder.is_of_this_process():
                return
            written = os.write(self._descriptor, data)
            if written < len(data):
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    @property
    def path(self) -> Path:
        """The path of the file, for a tool that writes to it directly instead of through :meth:`write`."""
        return self._folder.path / self._name.name

    def link_to(self, target: Path) -> None:
        """Give the file a second name. Use it as a ``Part.write``, then :meth:`drop` the file."""
        link(self.path, target)

    def drop(self) -> None:
        """Remove the file and list it as removed: its content is saved elsewhere or not wanted."""
        if not self._folder.is_of_this_process():
            return
        descriptor = self._take_descriptor()
        if descriptor is not None:
            os.close(descriptor)
        self._remove()

    def close(self, *more: Part) -> None:
        """Complete the file: it is listed as saved, and uploaded.

        Args:
            more (Part): further files of the window, which are quick to write. They have the same number in their names,
                and are kept and removed together with this file.
        """
        descriptor = self._take_descriptor()
        if descriptor is None or not self._folder.is_of_this_process():
            return
        os.close(descriptor)
        self._writer.run(lambda: self._finish(more), after_windows=True)

    def _take_descriptor(self) -> Optional[int]:
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
        return descriptor

    def _remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self._folder.record(self._folder.removed_entry(self._file, self._name))

    def _finish(self, more: Sequence[Part]) -> None:
        parts = [self._part, *more]
        if codec_for(self._part.compress) is not None:
            written = list(write_parts(self._folder, parts, self._file.stamp))
            self._on_written(parts, self._file.stamp, written)
            if written[0].entry is not None:
                self._remove()
            else:  # the uncompressed file is kept
                self._record_saved()
            return
        entry = self._record_saved()
        others = write_parts(self._folder, more, self._file.stamp, self._name.number)
        self._on_written(parts, self._file.stamp, [WrittenFile(entry), *others])

    def _record_saved(self) -> Entry:
        size, sha256 = retry_if_out_of_descriptors(lambda: sync_and_digest(self.path))
        entry = self._folder.saved_entry(self._file, self._name, size, sha256)
        self._folder.record(entry)
        return entry
