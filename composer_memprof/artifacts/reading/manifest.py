"""The manifest: the list of written files, their places, and whether they are uploaded; and of attempts, see ``attempts``.

Each rank and folder has one file, ``rank{rank}.manifest.jsonl``: append-only, one JSON object a line. A path may have
several lines; the last one counts. A process that writes to a manifest holds a shared lock on it, by which ``push`` knows
a running job from a dead one.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import threading
import time
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Optional, get_args

from composer_memprof.artifacts.reading.attempts import ATTEMPT, Attempt, End, now, own_attempt
from composer_memprof.artifacts.reading.locks import try_lock, unlock
from composer_memprof.artifacts.reading.regular_files import open_regular
from composer_memprof.artifacts.writing.disk import sync
from composer_memprof.simulated_gpu.this_process import simulated_device

Status = Literal['open', 'saved', 'handed_over', 'uploaded', 'failed', 'removed', 'skipped']
_STATUSES = frozenset(get_args(Status))
PATTERN = 'rank*.manifest.jsonl'
#: The end of the kind of a temporary file.
UNFINISHED = '.unfinished'
#: Keys that a line has only if their value is not None.
_OPTIONAL = ('simulated', 'reason')
#: A larger manifest is refused: some 300,000 lines.
_MOST_BYTES = 128 << 20
#: No path and no address is longer.
_LONGEST_NAME = 8192
_LARGEST = 2**63 - 1
#: Seconds within which another process completes a line that it has begun. A filesystem may show a line page by page.
_LINE_S = 0.01


@dataclass(frozen=True)
class Entry:
    """One line of a manifest.

    Args:
        kind (str): the callback's YAML name without ``memprof_``, with ``.part`` for a window's further files.
        path (str): relative to the manifest's folder.
        remote (str, optional): the name in the destination; None if it is not uploaded.
        bytes (int, optional): its size; None while it is open.
        sha256 (str, optional): in hexadecimal; None while it is open.
        rank (int): the rank that recorded it.
        run_name (str): of the run.
        epoch (int): at which it was saved.
        batch (int): at which it was saved.
        status (str): ``open`` (it grows), ``saved``, ``handed_over`` (to Composer's logger, which uploads it later),
            ``uploaded``, ``failed``, ``removed``, or ``skipped`` (a window that was left out; there is no such file).
        simulated (str, optional): the simulated GPU that it was recorded on; the line has no such key for a real one.
        reason (str, optional): why it was skipped; only those lines have the key.
    """

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
    simulated: Optional[str] = field(default_factory=simulated_device)
    reason: Optional[str] = None

    def as_dict(self) -> dict[str, Any]:
        """The keys and values of the line."""
        values = asdict(self)
        for name in _OPTIONAL:
            if values[name] is None:
                del values[name]
        return values


class Manifest:
    """Appends lines, from any thread. One object for each file in a process: get it with :meth:`acquire`."""

    _acquired: ClassVar[dict[Path, Manifest]] = {}
    _acquired_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: Path, attempt: Optional[Attempt] = None) -> None:
        self.path = path
        #: The bytes that earlier attempts have written; 0 before :meth:`open`.
        self.written_before = 0
        #: Nobody has closed yet what earlier attempts have left open.
        self.has_earlier = False
        #: No other process had the file open at :meth:`open`. False also where the filesystem knows no locks.
        self.was_alone = False
        self._attempt = attempt
        self._end: End = 'finished'
        self._users = 0
        self._file: Optional[int] = None
        self._is_locked = False
        self._lock = threading.Lock()

    @classmethod
    def acquire(cls, folder: Path, rank: int) -> Manifest:
        """The manifest of ``rank`` in ``folder``. The file is created by :meth:`open` or the first line."""
        path = manifest_of(folder, rank)
        with cls._acquired_lock:
            if path not in cls._acquired:
                cls._acquired[path] = cls(path, own_attempt(rank, is_new=not cls._acquired))
            manifest = cls._acquired[path]
            manifest._users += 1
            return manifest

    def release(self) -> None:
        """List the end of this attempt, and close the file and its lock, after the last user."""
        with self._acquired_lock, self._lock:
            self._users -= 1
            if self._users > 0:
                return
            self._acquired.pop(self.path, None)
            with contextlib.suppress(OSError):  # a full disk, or a lost folder: a reader finds the end by the lock
                if self._file is not None:
                    self._list_attempt(end=self._end, ended=now())
            self._attempt = None  # a line that comes later is of no new attempt
            self._close()

    @classmethod
    def is_open_here(cls, path: Path) -> bool:
        """True if this process has the manifest open."""
        manifest = cls._acquired.get(path)
        return manifest is not None and manifest._file is not None

    def open(self) -> None:
        """Create the file, take the lock that marks a running job, and list the attempt."""
        with self._lock:
            self._descriptor()

    def note_failure(self, end: End, error: str, line: Optional[str], batch: int) -> None:
        """List at once why ``fit`` has failed; the attempt ends so, unless :meth:`note_success` follows."""
        with self._lock:
            self._end = end
            if self._file is not None or self.path.parent.is_dir():  # otherwise the run leaves no files
                self._descriptor()
                self._list_attempt(failed=now(), error=error, line=line, batch=batch)

    def note_success(self) -> None:
        """A later ``fit`` has ended well."""
        self._end = 'finished'

    @property
    def descriptor(self) -> Optional[int]:
        """The descriptor of the open file, which holds the lock. A forked child that writes for the run keeps it."""
        return self._file

    def identity(self) -> Optional[tuple[int, int]]:
        """Device and inode of the file; None if there is none. They change if somebody removes the folder in mid-run."""
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _descriptor(self) -> int:
        removed = self._file if self._file is not None and self.identity() != _identity_of(self._file) else None
        is_first = self._file is None or removed is not None
        if self._file is None or removed is not None:
            self._file = _open(self.path)
            self._is_locked = False
            if removed is not None:
                os.close(removed)  # only now, so that the new file has another inode
            elif self._attempt is not None:
                self.was_alone = try_lock(self._file, shared=False) is True
                self.written_before = os.fstat(self._file).st_size
                self.has_earlier = self.written_before > 0
        if not self._is_locked:  # `push` may have had it until now
            self._is_locked = try_lock(self._file, shared=True) is not False
        if is_first:
            self._list_attempt()
        return self._file

    def append_attempt(self, attempt: Attempt) -> None:
        """Write the line of an earlier attempt."""
        with self._lock:
            _write_line(self._descriptor(), attempt.as_line().encode())

    def _list_attempt(self, **facts: Any) -> None:
        if self._attempt is not None and self._file is not None:
            self._attempt = replace(self._attempt, **facts)
            _write_line(self._file, self._attempt.as_line().encode())

    def append(self, entry: Entry, *, to_disk: bool = True) -> None:
        """Write a whole line; ``to_disk``: wait until the disk has it.

        Raises:
            OSError: if the disk has no room for the whole line. A torn line damages no other line.
        """
        line = json.dumps(entry.as_dict()) + '\n'
        with self._lock:
            try:
                descriptor = self._descriptor()
                _write_line(descriptor, line.encode())
                file = _duplicate(descriptor) if to_disk else None
            finally:
                if self._users <= 0:  # an upload that ended after the release
                    self._close()
        if file is not None:  # outside of the lock: a sync may take long, and the training thread appends too
            try:
                sync(file)
            finally:
                os.close(file)

    def _close(self) -> None:
        if self._file is not None:
            unlock(self._file)  # a forked child may still have the file open, and with it the lock
            os.close(self._file)
            self._file = None


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, 'O_NOFOLLOW', 0) | getattr(os, 'O_BINARY', 0)
    return os.open(path, flags, 0o644)


def _identity_of(file: int) -> tuple[int, int]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino


def _duplicate(file: int) -> Optional[int]:
    try:
        return os.dup(file)
    except OSError:  # descriptors ran out: the line is written, and nobody waits for the disk
        return None


def _ends_with_line(file: int) -> bool:
    size = os.lseek(file, 0, os.SEEK_END)
    return not size or (os.lseek(file, size - 1, os.SEEK_SET) >= 0 and os.read(file, 1) == b'\n')


def _write_line(file: int, line: bytes) -> None:
    """Append ``line``. If a kill or a full disk has cut the line before it short, end that line first."""
    if not _ends_with_line(file):
        time.sleep(_LINE_S)
        if not _ends_with_line(file):
            line = b'\n' + line
    while line:  # a disk that becomes full takes a part, and refuses the rest
        line = line[os.write(file, line) :]


def append_line(path: Path, entry: Entry, *, to_disk: bool = True) -> None:
    """Append to the manifest at ``path`` without :meth:`Manifest.acquire`."""
    manifest = Manifest(path)
    manifest.append(entry, to_disk=to_disk)


def read_manifest(path: Path, *, begin: int = 0, end: Optional[int] = None) -> list[Entry]:
    """The last line of each path, in the order in which the paths first appear, of bytes ``begin`` to ``end``.

    Skips lines that are no entries, such as one cut short by a kill, and temporary files that are gone. Trusts nothing
    in the file.

    Raises:
        OSError: if it can't be read, is no regular file, or is too large for a manifest.
    """
    entries: dict[str, Entry] = {}
    with open_regular(path) as raw, io.TextIOWrapper(raw, encoding='utf-8', errors='replace') as file:
        if os.fstat(raw.fileno()).st_size > _MOST_BYTES:
            raise OSError(errno.EFBIG, f'a manifest has at most {_MOST_BYTES >> 20} MiB', str(path))
        raw.seek(begin)
        for line in file if end is None else io.StringIO(raw.read(end - begin).decode('utf-8', 'replace')):
            entry = _parse(line) or _parse_last(line)
            if entry is not None and entry.kind != ATTEMPT:
                entries[entry.path] = entry
    return [entry for entry in entries.values() if not (is_unfinished(entry) and entry.status == 'removed')]


def is_unfinished(entry: Entry) -> bool:
    """True if the entry is of a temporary file, in which an artifact is being written."""
    return entry.kind.endswith(UNFINISHED)


def _parse_last(line: str) -> Optional[Entry]:
    """The entry at the end of a line that begins with a torn one."""
    begin = line.rfind('{"kind"')
    return _parse(line[begin:]) if begin > 0 else None


def _parse(line: str) -> Optional[Entry]:
    try:
        record: Any = json.loads(line)
        given = {field.name: record[field.name] for field in fields(Entry) if field.name not in _OPTIONAL}
        entry = Entry(**given, **{name: record.get(name) for name in _OPTIONAL})
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return entry if _is_sound(entry) else None


def _is_sound(entry: Entry) -> bool:
    """Whether each value has its type, and a size that a run could have written."""
    texts = [entry.kind, entry.path, entry.run_name, entry.status]
    texts += [text for text in (entry.remote, entry.sha256, entry.simulated, entry.reason) if text is not None]
    numbers = [entry.rank, entry.epoch, entry.batch, *([] if entry.bytes is None else [entry.bytes])]
    return (
        all(type(text) is str and len(text) <= _LONGEST_NAME for text in texts)
        and all(type(number) is int and 0 <= number <= _LARGEST for number in numbers)
        and entry.status in _STATUSES
    )


def find_manifests(folder: Path) -> list[Path]:
    """All manifests in ``folder``, at any depth, sorted by name."""
    return sorted(path for path in folder.rglob(PATTERN) if path.is_file())


def manifest_of(folder: Path, rank: int) -> Path:
    """The manifest of a rank in a folder."""
    return Path(os.path.abspath(folder)) / f'rank{rank}.manifest.jsonl'
