"""Unpickling a file that is not trusted: plain values only.

A pickle that names a class or a function is refused before the name is looked up, so nothing in it can run. The size
of decompressed data is limited. Memory is limited on request: see :func:`load_plain`.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from pathlib import Path
from typing import IO, Any

from composer_memprof.analysis.snapshot.limits import process_memory_limit
from composer_memprof.artifacts.naming.compression import CodecMissingError, codec_by_content
from composer_memprof.artifacts.reading.regular_files import open_regular
from composer_memprof.messages import MemprofError

#: gzip makes real snapshots 6 to 19 times smaller: events differ in their addresses and times.
_LARGEST_RATIO, _ALWAYS_ALLOWED = 100, 64 << 20
#: Bytes of Python objects for each byte of a pickle: 4 to 7 in real snapshots.
_OBJECTS_PER_BYTE, _MEMORY_ALWAYS_ALLOWED = 16, 512 << 20


class SnapshotError(MemprofError, ValueError):
    """The file is not a snapshot, or not a complete one. The message is one line."""


def load_plain(path: Path, limit_memory: bool = False) -> Any:
    """The object in a pickle of dicts, lists, tuples, strings and numbers, compressed or not.

    Args:
        path (Path): the file.
        limit_memory (bool): limit the memory of this process while it reads, all threads included. Otherwise a
            malicious file of a few bytes can use up the machine's memory. Default: ``False``.

    Raises:
        SnapshotError: if the pickle holds anything else, or is cut short or damaged; nothing in it is executed.
        OSError: if the file can't be read.
    """
    with open_regular(path) as raw:
        codec = codec_by_content(raw)
        size = os.fstat(raw.fileno()).st_size
        most = max(_ALWAYS_ALLOWED, _LARGEST_RATIO * size) if codec is not None else size
        memory = most * _OBJECTS_PER_BYTE + _MEMORY_ALWAYS_ALLOWED
        try:
            file = open_decompressed(raw, most)
            with process_memory_limit(memory) if limit_memory else contextlib.nullcontext():
                return _PlainUnpickler(file).load()
        except (SnapshotError, CodecMissingError) as error:
            raise SnapshotError(str(error)) from None
        except MemoryError:
            raise SnapshotError(
                'loading it takes more memory than is free, or than a snapshot of this size can need'
            ) from None
        except Exception as error:  # pickle raises many types for a damaged stream
            reason = ' '.join(str(error).split())[:200] or type(error).__name__
            raise SnapshotError(f'it is cut short or not a pickle: {reason}') from error


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        named = f'{module}.{name}'.encode('ascii', 'backslashreplace').decode()[:80]
        named = ''.join(letter if letter.isprintable() else '?' for letter in named)
        raise SnapshotError(f'it names {named}, and a snapshot holds only plain values; nothing in it was run')

    def persistent_load(self, pid: Any) -> Any:
        raise SnapshotError('it names objects outside the file, and a snapshot holds only plain values')


def open_decompressed(raw: IO[bytes], most: int) -> IO[bytes]:
    """A file that may be compressed, as its content says. More than ``most`` decompressed bytes are a SnapshotError."""
    codec = codec_by_content(raw)
    if codec is None:
        return raw
    return io.BufferedReader(_Limited(codec.open_for_read(raw), most), 1 << 20)  # type: ignore[arg-type, return-value]


class _Limited(io.RawIOBase):
    """Reads a decompressed file up to ``most`` bytes."""

    def __init__(self, file: io.BufferedIOBase, most: int) -> None:
        self._file = file
        self._left = most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise SnapshotError(f'decompressed it is more than {_LARGEST_RATIO} times as large, which no snapshot is')
        return count
