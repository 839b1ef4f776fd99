"""Unpickling a file that is not trusted: plain values alone, and no more memory than such a file can need.

A pickle that names any class or function is refused before it is looked up, so that nothing in it can run. One that
claims more than it holds (a gzip bomb, a memo index of billions) meets a limit instead of the machine's memory.
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import io
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

try:
    import resource
except ImportError:  # not on this platform: memory is then bounded by the file's size alone
    resource = None  # type: ignore[assignment]

#: A snapshot's events differ in their addresses and times: gzip makes real ones 6 to 19 times smaller.
_LARGEST_RATIO, _ALWAYS_ALLOWED = 100, 64 << 20
#: Bytes of Python objects for each byte of a pickle: 4 to 7 of real snapshots.
_OBJECTS_PER_BYTE, _MEMORY_ALWAYS_ALLOWED = 16, 512 << 20


class SnapshotError(ValueError):
    """A file that is no snapshot, or not a whole one. One line that says so."""


def load_plain(path: Path) -> Any:
    """The object in a pickle of dicts, lists, tuples, strings and numbers, gzipped or not.

    Raises:
        SnapshotError: if the pickle is anything else, cut short or damaged; nothing in it is executed.
        OSError: if the file can't be read.
    """
    with open(path, 'rb') as raw:
        zipped = raw.read(2) == b'\x1f\x8b'
        raw.seek(0)
        size = os.fstat(raw.fileno()).st_size
        most = max(_ALWAYS_ALLOWED, _LARGEST_RATIO * size) if zipped else size
        try:
            file: IO[bytes] = io.BufferedReader(_Unzipped(raw, most), 1 << 20) if zipped else raw  # type: ignore[assignment]
            with _memory_limit(most * _OBJECTS_PER_BYTE + _MEMORY_ALWAYS_ALLOWED):
                return _PlainUnpickler(file).load()
        except SnapshotError:
            raise
        except MemoryError:
            raise SnapshotError('it claims more memory than a file of its size can need, or than there is') from None
        except Exception as error:  # pickle raises whatever a broken stream leads it to
            reason = ' '.join(str(error).split())[:200] or type(error).__name__
            raise SnapshotError(f'it is cut short or no pickle: {reason}') from error


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        named = f'{module}.{name}'.encode('ascii', 'backslashreplace').decode()[:80]
        named = ''.join(letter if letter.isprintable() else '?' for letter in named)
        raise SnapshotError(f'it names {named}; a snapshot has plain values only, and nothing of it was run')

    def persistent_load(self, pid: Any) -> Any:
        raise SnapshotError('it names objects outside of it; a snapshot has plain values only')


class _Unzipped(io.RawIOBase):
    """Reads a gzipped file up to ``most`` bytes."""

    def __init__(self, raw: IO[bytes], most: int) -> None:
        self._file = gzip.GzipFile(fileobj=raw, mode='rb')
        self._left = most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise SnapshotError(f'unzipped it is more than {_LARGEST_RATIO} times its size, as no snapshot is')
        return count


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Plain values make no cycles worth looking for, and the collector looks often where there are millions."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def _memory_limit(more: int) -> Iterator[None]:
    """Let this process take ``more`` bytes of address space at most, and no more than the machine has left."""
    pages = _read_first(Path('/proc/self/statm'))
    if resource is None or pages is None:
        yield
        return
    left = _available()
    limit = pages * os.sysconf('SC_PAGESIZE') + (more if left is None else min(more, left))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    unlimited = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, (limit if soft == unlimited else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _read_first(path: Path) -> int | None:
    """The first number in a file of /proc."""
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _available() -> int | None:
    """Bytes that the machine could still give to a process."""
    try:
        for line in Path('/proc/meminfo').read_text().splitlines():
            if line.startswith('MemAvailable:'):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
