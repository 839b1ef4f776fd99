"""A run on this disk or in a store, with the snapshots that a command reads of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError
from composer_memprof.artifacts.naming.addresses import scheme_of
from composer_memprof.artifacts.reading.fetching import Store, temporary_folder
from composer_memprof.artifacts.reading.manifest import PATTERN


@dataclass(frozen=True)
class LocalRun:
    """A folder or file on this disk, and its name as it was given: a path, or the address in a store."""

    path: Path
    name: str

    def named(self, text: str) -> str:
        """``text`` with the names of the store in place of those of the temporary folder.

        >>> LocalRun(Path('/tmp/x'), 's3://runs/first').named('/tmp/x/rank0.pickle is damaged')
        's3://runs/first/rank0.pickle is damaged'
        """
        return text.replace(str(self.path), self.name)


@contextlib.contextmanager
def local_run(path_or_uri: str, choose: Callable[[Path], Iterable[Path]]) -> Iterator[LocalRun]:
    """A run, or a file, on this disk. From a store it fetches the manifests, and then the files that are chosen.

    Args:
        path_or_uri (str): a path, or the address of a store, such as ``s3://bucket/runs/first``.
        choose (Callable): takes the folder and returns the files that will be read. The manifests are there already; each
            other file is empty, with the time that the store gives.

    Raises:
        FetchError: if the store can't be read.
        SnapshotError: if ``choose`` raises one; it names the files of the store.
    """
    if scheme_of(path_or_uri) is None:
        path = Path(path_or_uri)
        yield LocalRun(path, str(path))
        return
    store = Store(path_or_uri)
    with temporary_folder() as folder:
        yield _fetched(store, folder, choose)


def _fetched(store: Store, folder: Path, choose: Callable[[Path], Iterable[Path]]) -> LocalRun:
    if store.is_file:
        store.fetch(store.files, folder)
        return LocalRun(store.path_in(folder, store.files[0]), store.uri)
    run = LocalRun(folder, store.uri)
    store.fetch_empty(store.files, folder)
    store.fetch([file for file in store.files if fnmatch(file.name.rpartition('/')[2], PATTERN)], folder)
    try:
        chosen = {path.resolve() for path in choose(folder)}
    except SnapshotError as error:
        raise SnapshotError(run.named(str(error))) from None
    store.fetch([file for file in store.files if store.path_in(folder, file) in chosen], folder)
    return run
