"""The manifest: what was written, where it lies and whether it has been uploaded.

One file a rank and folder, ``rank{rank}.manifest.jsonl``: append-only, one JSON object a line. A path may have
several lines; the last one counts. A process that writes to it holds a shared lock on it, so that ``push`` can tell
a running job's files from a dead one's.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Optional

try:
    import fcntl
except ImportError:  # not on this platform: `push` then can't tell that a run is alive
    fcntl = None  # type: ignore[assignment]

Status = Literal['open', 'saved', 'uploaded', 'failed', 'removed']
PATTERN = 'rank*.manifest.jsonl'


@dataclass(frozen=True)
class Entry:
    """One line. ``path`` is relative to the manifest's folder; ``bytes`` and ``sha256`` are None while it is open."""

    kind: str
    path: str
    remote: Optional[str]
    bytes: Optional[int]
    sha256: Optional[str]
    rank: int
    run_name: str
    epoch: int
    batch: int
    status: Status


class Manifest:
    """Appends lines, from any thread. One object a file and process: get it with :meth:`hold`."""

    _held: ClassVar[dict[Path, Manifest]] = {}
    _registry: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: Path) -> None:
        self.path = path
        self._holders = 0
        self._file: Optional[int] = None
        self._lock = threading.Lock()

    @classmethod
    def hold(cls, folder: Path, rank: int) -> Manifest:
        """The manifest of ``rank`` in ``folder``; nothing is created before the first line."""
        path = Path(os.path.abspath(folder)) / f'rank{rank}.manifest.jsonl'
        with cls._registry:
            manifest = cls._held.setdefault(path, cls(path))
            manifest._holders += 1
            return manifest

    def release(self) -> None:
        with self._registry, self._lock:
            self._holders -= 1
            if self._holders > 0:
                return
            self._held.pop(self.path, None)
            self._close()

    def open(self) -> None:
        """Create the file, and take the lock that says that a run is alive; no later than with the first line."""
        with self._lock:
            self._opened()

    def _opened(self) -> int:
        if self._file is None:
            self._file = _open(self.path)
            _try_lock(self._file, shared=True)
        return self._file

    def append(self, entry: Entry) -> None:
        """Write the line through to the disk."""
        line = json.dumps(asdict(entry)) + '\n'
        with self._lock:
            file = self._opened()
            os.write(file, line.encode())
            os.fsync(file)
            if self._holders <= 0:  # an upload that ended after the close
                self._close()

    def _close(self) -> None:
        if self._file is not None:
            _unlock(self._file)  # a forked child may still have the file open
            os.close(self._file)
            self._file = None


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, 'O_NOFOLLOW', 0), 0o644)
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b'\n':
        os.write(file, b'\n')  # a killed run's last line was cut short
    return file


def append_line(path: Path, entry: Entry) -> None:
    """Append to the manifest at ``path``, whose lock the caller has."""
    manifest = Manifest(path)
    manifest.append(entry)


def _unlock(file: int) -> None:
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def _try_lock(file: int, *, shared: bool) -> bool:
    """False where another process has it. Where locks can't be had (some network disks) it counts as had."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@contextlib.contextmanager
def taking_over(path: Path) -> Iterator[bool]:
    """Yields whether no other process writes to this manifest; none can take it while the block runs."""
    file = os.open(path, os.O_RDONLY | getattr(os, 'O_NOFOLLOW', 0))
    try:
        yield _try_lock(file, shared=False)
    finally:
        _unlock(file)
        os.close(file)


def read_manifest(path: Path) -> list[Entry]:
    """The last line of each path, in the order in which the paths came up first.

    Lines that are no entries (cut short by a kill, or not ours) are passed over: nothing in the file is trusted.
    """
    entries: dict[str, Entry] = {}
    with open(path, encoding='utf-8', errors='replace') as file:
        for line in file:
            entry = _parse(line)
            if entry is not None:
                entries[entry.path] = entry
    return list(entries.values())


def _parse(line: str) -> Optional[Entry]:
    try:
        record: Any = json.loads(line)
        entry = Entry(**{field.name: record[field.name] for field in fields(Entry)})
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    texts = (entry.kind, entry.path, entry.run_name, entry.status)
    numbers = (entry.rank, entry.epoch, entry.batch)
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(number, int) for number in numbers):
        return None
    if entry.remote is not None and not isinstance(entry.remote, str):
        return None
    return entry


def find_manifests(folder: Path) -> list[Path]:
    """All manifests under ``folder``, in order of name."""
    return sorted(path for path in folder.rglob(PATTERN) if path.is_file())
