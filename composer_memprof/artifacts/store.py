"""The artifact store of one callback: writes each file whole, lists it in the manifest, uploads it, keeps the newest.

Everything but the naming happens off the training thread: what computes in a forked child, what waits on the writer's
and the uploader's lane.
"""

from __future__ import annotations

import gzip
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Optional

from composer.utils import dist

from composer_memprof.artifacts import push
from composer_memprof.artifacts.background import Child, Lane, Tally, exit_deadline, exiting, fork
from composer_memprof.artifacts.files import move_to_new, seal
from composer_memprof.artifacts.manifest import Entry, Manifest, Status
from composer_memprof.artifacts.names import Naming, Stamp, inside
from composer_memprof.artifacts.remote import Destination, FsspecDestination
from composer_memprof.words import warn

# Jobs hold recorded data until they are written: beyond a few, the training waits for its own profiler instead.
_writer = Lane('memprof-writer', capacity=4)
# Upload jobs are names only. What finds no room stays `saved`, for the close or for `push`.
_uploader = Lane('memprof-uploader', capacity=256)
# Far longer than a child takes that is not stuck.
_CHILD_TIMEOUT_S = 120.0
# How long the training waits at most for room among the jobs, before it goes on without a window.
_ROOM_TIMEOUT_S = 10.0
_WRITING_TIMEOUT_S = 600.0


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
    """What is kept or removed together. A file leaves ``waiting`` once it needs no upload any more."""

    entries: list[Entry] = field(default_factory=list)
    waiting: int = 0
    then: Optional[Callable[[dict[str, Path]], None]] = None


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
        self._writing = Tally()
        self._uploading = Tally()
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
    ) -> None:
        """Write a window's files.

        Args:
            parts (Sequence[Part]): the files, the main one first.
            stamp (Stamp): the moment in their names.
            here (bool): write on the calling thread, because the files are needed when this returns.
            then (Callable, optional): told of the paths by kind, once they are complete.
        """
        window = _Window(then=then)
        if here or exiting():
            self._guarded(lambda: self._complete(parts, stamp, window, _produce(self.folder, parts)))
            return
        if not _writer.wait_for_room(_ROOM_TIMEOUT_S):
            self._guarded(lambda: self._leave_out(parts, stamp))
            return
        child = fork(lambda: [asdict(made) for made in _produce(self.folder, parts)])
        self._in_the_background(lambda: self._complete(parts, stamp, window, _collect(child, self.folder, parts)))

    def grow(self, kind: str, suffix: str, stamp: Stamp, *, compress: bool = False) -> GrowingFile:
        """A file that is listed as ``open`` and survives a kill as far as it was written."""
        return GrowingFile(self, kind, suffix, stamp, compress=compress)

    def close(self, timeout: float) -> None:
        """Wait for what is still to be written, and up to ``timeout`` seconds for uploads; ``push`` sends the rest.

        While the interpreter exits, all of it together takes no longer than ``timeout``: whoever stopped the job
        kills it soon after.
        """
        if self._closed:
            return
        self._closed = True
        if exiting():
            deadline = exit_deadline(timeout)
            self._writing.wait(deadline)
            # An upload under way may succeed with a client that is warm; the rest is a child's to do.
            self._uploading.wait(deadline - 0.75 * timeout)
        else:
            self._writing.wait(time.monotonic() + _WRITING_TIMEOUT_S)
            deadline = time.monotonic() + timeout
            self._send_again(deadline)
            self._uploading.wait(deadline)
        self._leave_to_push(timeout)
        self._manifest.release()
        _writer.release()
        _uploader.release()

    # -- writing ------------------------------------------------------------------------------------------------

    def _in_the_background(self, work: Callable[[], None]) -> None:
        """Run ``work`` on the writer's lane, or here where that is full."""

        def job() -> None:
            try:
                self._guarded(work)
            finally:
                self._writing.done()

        self._writing.add()
        if not _writer.submit(job):
            job()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run ``work`` without ever raising: the training may be behind it."""
        try:
            work()
        except Exception as error:  # a full disk, a folder gone: the training goes on without its profile
            self._give_up(error)

    def _complete(self, parts: Sequence[Part], stamp: Stamp, window: _Window, made: list[_Made]) -> None:
        """Give the written files their names, list them and send them off."""
        paths: dict[str, Path] = {}
        try:
            number = self._free_number(parts, stamp)
            for part, file in zip(parts, made):
                if file.error is not None:
                    self._fail(part, stamp, file.error)
                    continue
                name = self._publish(Path(file.path), part.naming or self.naming, stamp, part.full_suffix, number)
                remote = self._remote_name(part.naming or self.naming, stamp, part.full_suffix, name)
                entry = self._entry(part.kind, name[0], remote, stamp, 'saved', file.bytes, file.sha256)
                self._list(entry, window)
                paths[part.kind] = self.folder / name[0]
        finally:
            for file in made:
                Path(file.path).unlink(missing_ok=True)
        if window.then is not None:
            self._tell(window.then, paths)
        self._register(window)

    def _tell(self, then: Callable[[dict[str, Path]], None], paths: dict[str, Path]) -> None:
        try:
            then(paths)
        except Exception as error:  # someone else's reader of the file; the file itself is safe
            self._warn_once(
                'then', f'{", ".join(map(str, paths.values()))} could not be handed on: {type(error).__name__}: {error}'
            )

    def _list(self, entry: Entry, window: _Window) -> None:
        self._manifest.append(entry)
        with self._lock:
            if self.overwrite:  # the file that this one replaced is no older window's any more
                for older in self._windows:
                    older.entries = [old for old in older.entries if old.path != entry.path]
            window.entries.append(entry)
        if entry.remote is not None:
            window.waiting += 1

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
        if self.destination is None or not self.destination.accepts_files():
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
        self._warn_once(part.kind, f'{part.kind} of batch {stamp.timestamp.batch.value} could not be written: {error}')
        name = (part.naming or self.naming).local(stamp, part.full_suffix, 1)
        if not (self.folder / name).exists():  # the line of an earlier, whole file of that name stays the last one
            self._manifest.append(self._entry(part.kind, name, None, stamp, 'failed'))

    def _leave_out(self, parts: Sequence[Part], stamp: Stamp) -> None:
        for part in parts:
            self._fail(part, stamp, 'earlier windows are still being written; let them be farther apart')

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
        self._uploading.add()
        if not _uploader.submit(lambda: self._upload(entry, window)):
            self._uploading.done()
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
        try:
            self._guarded(lambda: self._upload_or_keep(entry, window))
        finally:
            self._uploading.done()
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
            if entry.status == 'uploaded':
                window.waiting -= 1

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

    def __init__(self, store: ArtifactStore, kind: str, suffix: str, stamp: Stamp, *, compress: bool) -> None:
        self._store = store
        self._kind = kind
        self._suffix = suffix
        self._stamp = stamp
        self._compress = compress
        self._file: Optional[int] = None
        self._lock = threading.Lock()
        self._number = 1
        self._name = self._create()
        remote = store._remote_name(store.naming, stamp, suffix, (self._name, self._number))
        entry = store._entry(kind, self._name, remote, stamp, 'open')
        store._in_the_background(lambda: self._list_as_open(entry))

    def _create(self) -> str:
        store = self._store
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if store.overwrite else os.O_EXCL)
        while True:
            name = store.naming.local(self._stamp, self._suffix, self._number)
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
        part = Part(self._kind, self._suffix, lambda target: shutil.copyfile(path, target), compress=self._compress)
        if not self._compress:
            size, sha256 = seal(path)
            remote = store._remote_name(store.naming, self._stamp, self._suffix, (self._name, self._number))
            window = _Window()
            store._list(store._entry(self._kind, self._name, remote, self._stamp, 'saved', size, sha256), window)
            store._register(window)
            return
        store._complete([part], self._stamp, _Window(), _produce(store.folder, [part]))
        path.unlink()
        store._manifest.append(store._entry(self._kind, self._name, None, self._stamp, 'removed'))


@dataclass(frozen=True)
class _Made:
    """A file written whole under a temporary name, or why it could not be."""

    path: str
    bytes: int = 0
    sha256: str = ''
    error: Optional[str] = None


def _produce(folder: Path, parts: Sequence[Part]) -> list[_Made]:
    """Write every part under a hidden name in ``folder``, through to the disk. Runs in a child, where it can."""
    return [_produce_one(folder, part) for part in parts]


def _produce_one(folder: Path, part: Part) -> _Made:
    target = folder / f'.{part.kind}.{os.getpid()}.{time.monotonic_ns()}.tmp'
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write(target)
        if part.compress:
            zipped = target.with_suffix('.gz')
            with open(target, 'rb') as source, gzip.open(zipped, 'wb', compresslevel=6) as out:
                shutil.copyfileobj(source, out, 1 << 20)
            target.unlink()
            target = zipped
        size, sha256 = seal(target)
    except Exception as error:  # one part that fails takes no other with it
        target.unlink(missing_ok=True)
        target.with_suffix('.gz').unlink(missing_ok=True)
        return _Made(str(target), error=f'{type(error).__name__}: {error}')
    return _Made(str(target), size, sha256)


def _collect(child: Optional[Child], folder: Path, parts: Sequence[Part]) -> list[_Made]:
    """What the child made. Where none could be had this thread does it; what a child died of is not tried again here."""
    if child is None:
        return _produce(folder, parts)
    made = child.result(_CHILD_TIMEOUT_S)
    if made is not None:
        return [_Made(**file) for file in made]
    for left in folder.glob(f'.*.{child.pid}.*'):
        left.unlink(missing_ok=True)
    error = f'the process that was to write it died, or took longer than {_CHILD_TIMEOUT_S:g} s'
    return [_Made(str(folder / f'.{part.kind}.{child.pid}'), error=error) for part in parts]
