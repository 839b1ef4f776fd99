"""The artifact store of one callback: writes each file whole, lists it in the manifest, uploads it, keeps the newest.

All of it happens off the training thread: what computes, and gives a file its name, in a forked child, one at a time;
what waits on the writer's and the uploader's lane.
"""

from __future__ import annotations

import gzip
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

from composer.utils import dist

from composer_memprof.artifacts import push
from composer_memprof.artifacts.child import LONGEST_S, Child, ReadAtFork, fork
from composer_memprof.artifacts.destinations import Destination, FsspecDestination
from composer_memprof.artifacts.exiting import exit_deadline, exiting
from composer_memprof.artifacts.files import link, move_to_new, seal
from composer_memprof.artifacts.manifest import Entry, Manifest, Status, append_line
from composer_memprof.artifacts.names import Naming, Stamp, inside
from composer_memprof.artifacts.worker_thread import Job, WorkerThread
from composer_memprof.messages import warn

# Jobs hold recorded data until they are written: beyond a few, a callback records no further window.
_writer = WorkerThread('memprof-writer', capacity=4)
# Upload jobs are names only. What finds no room stays `saved`, for the close or for `push`.
_uploader = WorkerThread('memprof-uploader', capacity=256)
_WRITING_TIMEOUT_S = 600.0


def fork_next_writer() -> None:
    """On the training thread, now and then: begin to write the next window, where one waits for the last to be done."""
    _writer.advance()


@dataclass(frozen=True)
class Part:
    """One file of a window.

    Args:
        kind (str): as in the manifest: ``memory_snapshot``, ``memory_snapshot.page``.
        suffix (str): of its name.
        write (Callable): writes the file whole, at the path it is given. May run in a forked child.
        compress (bool): gzip what was written, and append ``.gz`` to the name.
        naming (Naming, optional): where it differs from the store's.
    """

    kind: str
    suffix: str
    write: Callable[[Path], object]
    compress: bool = False
    naming: Optional[Naming] = None

    @property
    def full_suffix(self) -> str:
        return f'{self.suffix}.gz' if self.compress else self.suffix


@dataclass
class _Window:
    """What is kept or removed together."""

    entries: list[Entry] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        """How many of the files are still to be uploaded."""
        return sum(entry.remote is not None and entry.status != 'uploaded' for entry in self.entries)


class ArtifactStore:
    """Keeps the files of one callback in one run.

    Args:
        folder (Path): of the run. Nothing is created in it before the first file.
        naming (Naming): of the files.
        destination (Destination, optional): where they are uploaded.
        overwrite (bool): replace a file of the same name, instead of taking ``.2``, ``.3``, …
        keep (int): how many windows' files stay on this disk once they are uploaded; -1: all.
        on_failure (Callable): told once, when nothing can be written any more.
        on_removed (Callable, optional): told of each removed window's paths.
    """

    def __init__(
        self,
        folder: Path,
        naming: Naming,
        destination: Optional[Destination] = None,
        *,
        overwrite: bool = False,
        keep: int = -1,
        on_failure: Optional[Callable[[BaseException], None]] = None,
        on_removed: Optional[Callable[[list[Path]], None]] = None,
    ) -> None:
        self.folder = folder.absolute()  # the training may change its directory
        self.naming = naming
        self.destination = destination
        self.overwrite = overwrite
        self.keep = keep
        self._on_failure = on_failure
        self._on_removed = on_removed
        self._rank = dist.get_global_rank()
        self._manifest = Manifest.hold(folder, self._rank)
        self._lock = threading.Lock()
        self._windows: list[_Window] = []
        self._unsent: list[tuple[Entry, _Window]] = []
        self._warned_of: set[str] = set()
        self._closed = False
        _writer.hold()
        _uploader.hold()

    # -- what callbacks call ------------------------------------------------------------------------------------

    def save(
        self,
        parts: Sequence[Part],
        stamp: Stamp,
        *,
        here: bool = False,
        then: Optional[Callable[[dict[str, Path]], None]] = None,
        read_at_fork: Optional[ReadAtFork] = None,
    ) -> None:
        """Write a window's files.

        Args:
            parts (Sequence[Part]): the files, the main one first.
            stamp (Stamp): the moment in their names.
            here (bool): write on the calling thread, because the files are needed when this returns.
            then (Callable, optional): told of the paths by kind, once they are complete.
            read_at_fork (ReadAtFork, optional): what has to be read now: the child is forked and reads it at once, and
                writes when it is its turn.
        """
        writing = _Writing(self, parts, stamp, then)
        self._guarded(self._manifest.open)
        if here or exiting():
            writing.run()
            return
        if read_at_fork is not None:
            if not writing.begin(read_at_fork):
                read_at_fork.read()
            _writer.submit(Job(writing.run, owner=self))
            return
        _writer.submit(Job(writing.run, owner=self, begin=writing.begin))
        _writer.advance()

    def has_room(self) -> bool:
        """Whether a further window can be written soon; if not, it had better not be recorded."""
        return _writer.has_room(self)

    def grow(
        self, kind: str, suffix: str, stamp: Stamp, *, compress: bool = False, naming: Optional[Naming] = None
    ) -> GrowingFile:
        """A file that is listed as ``open`` and survives a kill as far as it was written."""
        return GrowingFile(self, kind, suffix, stamp, compress=compress, naming=naming or self.naming)

    def close(self, timeout: float) -> None:
        """Wait for what is still to be written, and up to ``timeout`` seconds for uploads; ``push`` sends the rest.

        While the interpreter exits, all of it together takes no longer than ``timeout``: whoever stopped the job
        kills it soon after.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._wait(timeout)
            self._leave_to_push(timeout)
        finally:
            self._manifest.release()
            _writer.release()
            _uploader.release()

    def _wait(self, timeout: float) -> None:
        if exiting():
            deadline = exit_deadline(timeout)
            _writer.wait(self, deadline)
            # An upload under way may succeed with a client that is warm; the rest is a child's to do.
            _uploader.wait(self, deadline - 0.75 * timeout)
        else:
            _writer.wait(self, time.monotonic() + _WRITING_TIMEOUT_S)
            deadline = time.monotonic() + timeout
            self._send_again(deadline)
            _uploader.wait(self, deadline)

    # -- writing ------------------------------------------------------------------------------------------------

    def _in_the_background(self, work: Callable[[], None]) -> None:
        _writer.submit(Job(lambda: self._guarded(work), owner=self))

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run ``work`` without ever raising: the training may be behind it."""
        try:
            work()
        except Exception as error:  # a full disk, a folder gone: the training goes on without its profile
            self._give_up(error)

    def _make(self, parts: Sequence[Part], stamp: Stamp) -> Iterator[_Made]:
        """Write every part whole under a hidden name, give it its own, list it. Runs in a child, where it can."""
        number = self._free_number(parts, stamp)
        for part in parts:
            yield self._make_one(part, stamp, number)

    def _make_one(self, part: Part, stamp: Stamp, number: int) -> _Made:
        naming = part.naming or self.naming
        try:
            hidden, size, sha256 = _write_whole(self.folder, part)
        except Exception as error:  # one part that fails takes no other with it
            return _Made(error=f'{type(error).__name__}: {error}')
        try:
            name = self._publish(hidden, naming, stamp, part.full_suffix, number)
            remote = self._remote_name(naming, stamp, part.full_suffix, name)
            entry = self._entry(part.kind, name[0], remote, stamp, 'saved', size, sha256)
            append_line(self._manifest.path, entry)
        except OSError as error:
            return _Made(error=str(error), folder_is_lost=True)
        finally:
            hidden.unlink(missing_ok=True)
        return _Made(entry)

    def _complete(
        self,
        parts: Sequence[Part],
        stamp: Stamp,
        made: Sequence[_Made],
        then: Optional[Callable[[dict[str, Path]], None]] = None,
    ) -> None:
        """Tell of what was written and of what could not be, and send it off."""
        window = _Window()
        for part, file in zip(parts, made):
            if file.folder_is_lost:
                raise OSError(file.error)
            if file.entry is None:
                self._fail(part, stamp, file.error)
            else:
                self._add(file.entry, window)
        if then is not None:
            self._tell(then, {entry.kind: self.folder / entry.path for entry in window.entries})
        if window.entries:
            self._register(window)

    def _tell(self, then: Callable[[dict[str, Path]], None], paths: dict[str, Path]) -> None:
        try:
            then(paths)
        except Exception as error:  # someone else's reader of the file; the file itself is safe
            self._warn_once(
                'then', f'{", ".join(map(str, paths.values()))} could not be handed on: {type(error).__name__}: {error}'
            )

    def _add(self, entry: Entry, window: _Window) -> None:
        with self._lock:
            if self.overwrite:  # the file that this one replaced is no older window's any more
                for older in self._windows:
                    older.entries = [old for old in older.entries if old.path != entry.path]
            window.entries.append(entry)

    def _register(self, window: _Window) -> None:
        with self._lock:
            self._windows.append(window)
        for entry in list(window.entries):
            if entry.remote is not None:
                self._send(entry, window)
        self._remove_old()

    def _free_number(self, parts: Sequence[Part], stamp: Stamp) -> int:
        """The first number under which all files of the window are new."""
        number = 1
        while not self.overwrite and any(
            (self.folder / (part.naming or self.naming).local(stamp, part.full_suffix, number)).exists()
            for part in parts
        ):
            number += 1
        return number

    def _publish(self, made: Path, naming: Naming, stamp: Stamp, suffix: str, number: int) -> tuple[str, int]:
        """Move a whole file to its name, or the next free one; returns both name and number."""
        while True:
            name = naming.local(stamp, suffix, number)
            path = inside(self.folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if self.overwrite:
                os.replace(made, path)
                return name, number
            try:
                move_to_new(made, path)
            except FileExistsError:
                number += 1
                continue
            return name, number

    def _remote_name(self, naming: Naming, stamp: Stamp, suffix: str, name: tuple[str, int]) -> Optional[str]:
        if not self._anyone_takes_files():
            return None
        remote = naming.in_store(stamp, suffix, name[1], name[0])
        return remote.lstrip('/') if remote is not None else None

    def _entry(
        self,
        kind: str,
        path: str,
        remote: Optional[str],
        stamp: Stamp,
        status: Status,
        size: Optional[int] = None,
        sha256: Optional[str] = None,
    ) -> Entry:
        epoch, batch = stamp.timestamp.epoch.value, stamp.timestamp.batch.value
        return Entry(kind, path, remote, size, sha256, self._rank, stamp.run_name, epoch, batch, status)

    def _fail(self, part: Part, stamp: Stamp, error: str) -> None:
        name = (part.naming or self.naming).local(stamp, part.full_suffix, 1)
        if not (self.folder / name).exists():  # the line of an earlier, whole file of that name stays the last one
            self._manifest.append(self._entry(part.kind, name, None, stamp, 'failed'))
        # After it: on a disk that takes no line either, it is the whole folder that is told of.
        self._warn_once(part.kind, f'{part.kind} of batch {stamp.timestamp.batch.value} could not be written: {error}')

    def _give_up(self, error: BaseException) -> None:
        self._warn_once(
            'folder',
            f'nothing can be written to {str(self.folder)!r} any more ({error}); the training goes on without. '
            'Free space or rights there, or set folder to another place',
        )
        if self._on_failure is not None:
            self._on_failure(error)

    # -- uploading ----------------------------------------------------------------------------------------------

    def _send(self, entry: Entry, window: _Window) -> None:
        if _uploader.has_room():
            _uploader.submit(Job(lambda: self._upload(entry, window), owner=self))
        else:
            with self._lock:
                self._unsent.append((entry, window))

    def _send_again(self, deadline: float) -> None:
        """At the close, what found the queue full; a few at a time, as there is room."""
        while self._unsent and time.monotonic() < deadline:
            with self._lock:
                entry, window = self._unsent.pop()
            self._send(entry, window)
            if self._unsent:
                time.sleep(0.05)

    def _upload(self, entry: Entry, window: _Window) -> None:
        self._guarded(lambda: self._upload_or_keep(entry, window))
        self._guarded(self._remove_old)

    def _upload_or_keep(self, entry: Entry, window: _Window) -> None:
        assert self.destination is not None and entry.remote is not None
        if exiting() and isinstance(self.destination, FsspecDestination):
            return  # left to the child process
        try:
            name = self.destination.upload(self.folder / entry.path, entry.remote)
        except Exception as error:  # whatever a store's client raises
            self._settle(replace(entry, status='failed'), window)
            self._warn_once(
                'upload',
                f'uploading {entry.path} to {entry.remote} failed: {type(error).__name__}: {error}. The file is kept; '
                f'send it later with: composer-memprof push {self.folder}',
            )
        else:
            self._settle(replace(entry, remote=name, status='uploaded'), window)

    def _settle(self, entry: Entry, window: _Window) -> None:
        self._manifest.append(entry)
        with self._lock:
            window.entries = [entry if old.path == entry.path else old for old in window.entries]

    def _leave_to_push(self, timeout: float) -> None:
        with self._lock:
            waiting = sum(window.waiting for window in self._windows)
        if not waiting or not isinstance(self.destination, FsspecDestination):
            return
        if exiting():
            push.at_exit(self._manifest.path, self.destination.storage_options, timeout)
        else:
            self._warn_once(
                'upload',
                f'{waiting} file(s) were not uploaded within close_timeout={timeout:g} s; they are kept. '
                f'Send them with: composer-memprof push {self.folder}',
            )

    # -- retention ----------------------------------------------------------------------------------------------

    def _remove_old(self) -> None:
        if self.keep < 0:
            return
        with self._lock:
            # Where nobody takes files, keeping none would keep nothing anywhere.
            kept = self.keep if self._anyone_takes_files() else max(self.keep, 1)
            old = self._windows[: max(len(self._windows) - kept, 0)]
            gone = [window for window in old if window.waiting == 0]
            self._windows = [window for window in self._windows if window not in gone]
        for window in gone:
            for entry in window.entries:
                (self.folder / entry.path).unlink(missing_ok=True)
                self._manifest.append(replace(entry, status='removed'))
            if self._on_removed is not None:
                self._on_removed([self.folder / entry.path for entry in window.entries])

    def _anyone_takes_files(self) -> bool:
        return self.destination is not None and self.destination.accepts_files()

    def _warn_once(self, about: str, message: str) -> None:
        if about not in self._warned_of:
            self._warned_of.add(about)
            warn(message)


class GrowingFile:
    """Lines appended to a file that is there from its first line. Get it from :meth:`ArtifactStore.grow`."""

    def __init__(
        self, store: ArtifactStore, kind: str, suffix: str, stamp: Stamp, *, compress: bool, naming: Naming
    ) -> None:
        self._store = store
        self._naming = naming
        self._kind = kind
        self._suffix = suffix
        self._stamp = stamp
        self._compress = compress
        self._file: Optional[int] = None
        self._lock = threading.Lock()
        self._number = 1
        self._name = self._create()
        remote = store._remote_name(naming, stamp, suffix, (self._name, self._number))
        entry = store._entry(kind, self._name, remote, stamp, 'open')
        store._in_the_background(lambda: self._list_as_open(entry))

    def _create(self) -> str:
        store = self._store
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if store.overwrite else os.O_EXCL)
        while True:
            name = self._naming.local(self._stamp, self._suffix, self._number)
            path = inside(store.folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._file = os.open(path, flags, 0o644)
            except FileExistsError:
                self._number += 1
                continue
            return name

    def _list_as_open(self, entry: Entry) -> None:
        with self._lock:
            if self._file is not None:  # otherwise it is complete, and listed as that
                self._store._manifest.append(entry)

    def write(self, line: str) -> None:
        """Append ``line``, whole, from any thread. After the close it is lost."""
        with self._lock:
            if self._file is not None:
                os.write(self._file, line.encode() + b'\n')

    @property
    def path(self) -> Path:
        """Where a tool that writes by itself may write, in place of :meth:`write`."""
        return self._store.folder / self._name

    def link_to(self, target: Path) -> None:
        """Give what was written a second name. What a Part writes, before the file is dropped."""
        link(self.path, target)

    def drop(self) -> None:
        """What was written is saved elsewhere, or is worth nothing: the file goes, and is listed as removed."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            os.close(file)
        self._remove()

    def _remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self._store._manifest.append(self._store._entry(self._kind, self._name, None, self._stamp, 'removed'))

    def close(self) -> None:
        """The file is complete: it is listed as saved, and uploaded."""
        with self._lock:
            file, self._file = self._file, None
        if file is None:
            return
        os.close(file)
        self._store._in_the_background(self._finish)

    def _finish(self) -> None:
        store, path = self._store, self._store.folder / self._name
        part = Part(
            self._kind, self._suffix, lambda target: shutil.copyfile(path, target), self._compress, self._naming
        )
        if not self._compress:
            size, sha256 = seal(path)
            remote = store._remote_name(self._naming, self._stamp, self._suffix, (self._name, self._number))
            window = _Window()
            entry = store._entry(self._kind, self._name, remote, self._stamp, 'saved', size, sha256)
            store._manifest.append(entry)
            store._add(entry, window)
            store._register(window)
            return
        store._complete([part], self._stamp, list(store._make([part], self._stamp)))
        self._remove()


@dataclass(frozen=True)
class _Made:
    """What is listed of a file that was written, or why it could not be."""

    entry: Optional[Entry] = None
    error: str = ''
    folder_is_lost: bool = False


class _Writing:
    """The writing of one window: begun on the training thread, seen through on the writer's lane."""

    def __init__(
        self,
        store: ArtifactStore,
        parts: Sequence[Part],
        stamp: Stamp,
        then: Optional[Callable[[dict[str, Path]], None]],
    ) -> None:
        self._store = store
        self._parts = parts
        self._stamp = stamp
        self._then = then
        self._child: Optional[Child] = None

    def begin(self, read_at_fork: Optional[ReadAtFork] = None) -> bool:
        """Whether a child is at it."""
        self._child = fork(lambda: (asdict(made) for made in self._store._make(self._parts, self._stamp)), read_at_fork)
        return self._child is not None

    def run(self) -> None:
        self._store._guarded(self._see_through)

    def _see_through(self) -> None:
        made = list(self._store._make(self._parts, self._stamp)) if self._child is None else self._of_child(self._child)
        self._store._complete(self._parts, self._stamp, made, self._then)

    def _of_child(self, child: Child) -> list[_Made]:
        """What the child made. What it died of is not tried again here, where it would take the training with it."""
        made = [_made(found) for found in child.results(LONGEST_S)]
        missing = len(self._parts) - len(made)
        if missing:
            for left in self._store.folder.glob(f'.*.{child.pid}.*'):
                left.unlink(missing_ok=True)
        error = f'the process that was to write it died, or took longer than {LONGEST_S:g} s'
        return [*made, *[_Made(error=error)] * missing]


def _made(found: dict[str, Any]) -> _Made:
    entry = found.pop('entry')
    return _Made(None if entry is None else Entry(**entry), **found)


def _write_whole(folder: Path, part: Part) -> tuple[Path, int, str]:
    """Write a part under a hidden name, through to the disk; returns its path, size in bytes and sha256."""
    target = folder / f'.{part.kind}.{os.getpid()}.{time.monotonic_ns()}.tmp'
    zipped = target.with_suffix('.gz')
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write(target)
        if part.compress:
            with open(target, 'rb') as source, gzip.open(zipped, 'wb', compresslevel=6) as out:
                shutil.copyfileobj(source, out, 1 << 20)
            target.unlink()
            target = zipped
        return (target, *seal(target))
    except BaseException:
        for left in folder.glob(f'{target.stem}*'):  # torch writes under a name of its own beside it
            left.unlink(missing_ok=True)
        raise
