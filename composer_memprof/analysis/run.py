"""The files of a run, from its manifests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError
from composer_memprof.artifacts.containment import inside
from composer_memprof.artifacts.manifest import Entry, find_manifests, read_manifest

_SNAPSHOT = 'memory_snapshot'
#: Marks in the name of a snapshot that was taken for a failure, the worst last, and what happened to its rank.
_FAILURES = (('', ''), ('.exception.', 'failed'), ('.oom.', 'ran out of memory'))


@dataclass(frozen=True)
class Artifact:
    """A file that a manifest lists, and the manifest's folder."""

    folder: Path
    entry: Entry

    @property
    def path(self) -> Path:
        """As the manifest says; see :meth:`checked_path` for manifests that are not trusted."""
        return self.folder / self.entry.path

    def checked_path(self) -> Path:
        """The file with every link followed.

        Raises:
            ValueError: if it is not inside the manifest's folder.
        """
        try:
            path = inside(self.folder, self.entry.path)
        except (OSError, ValueError, RuntimeError):  # also a name that no file can have, or links in a circle
            path = self.folder.resolve()
        if path == self.folder.resolve():
            raise ValueError(f'the manifest in {self.folder} lists {self.entry.path[:80]!r}, which leaves its folder')
        return path


@dataclass(frozen=True)
class RunResult:
    """The outcome of a run. Losses are in the model's own unit; None if no batch was trained."""

    run_name: str
    batches: int
    first_loss: Optional[float]
    last_loss: Optional[float]
    artifacts: list[Artifact]


def list_artifacts(folders: Iterable[Path], recursive: bool = False) -> list[Artifact]:
    """The files that manifests in ``folders`` list, without removed ones, in order of batch and rank.

    Args:
        folders (Iterable[Path]): where the manifests are.
        recursive (bool): also read manifests in their subfolders. Default: ``False``.

    Raises:
        OSError: if a manifest can't be read.
    """
    artifacts = [
        Artifact(manifest.parent, entry)
        for folder in sorted(folders)
        for manifest in find_manifests(folder)
        if recursive or manifest.parent == folder
        for entry in read_manifest(manifest)
        if entry.status != 'removed'
    ]
    return sorted(artifacts, key=lambda artifact: (artifact.entry.batch, artifact.entry.rank))


@dataclass(frozen=True)
class RankSnapshot:
    """The snapshot of one rank that tells most.

    Args:
        path (Path): the file.
        rank (int, optional): None for a file that was named itself.
        failure (str): ``'ran out of memory'``, ``'failed'``, or ``''``.
        others (int): number of further ranks that have a snapshot.
    """

    path: Path
    rank: Optional[int]
    failure: str
    others: int


def snapshots_by_rank(path: Path) -> dict[Optional[int], Path]:
    """The memory snapshot of each rank of the run in folder ``path``, or the file ``path`` itself as that of rank None.

    A rank's first snapshot of memory that ran out comes first, then its first of another failure, then that of its latest
    batch.

    Raises:
        SnapshotError: if no manifest lists a snapshot that exists, or one lists a file outside its folder.
        OSError: if a manifest can't be read.
    """
    if not path.is_dir():
        return {None: path}
    best = _best_by_rank(path)
    return {rank: found.file for rank, found in sorted(best.items())}


def snapshot_to_show(path: Path) -> RankSnapshot:
    """The snapshot of the run in folder ``path`` that tells most, or the file ``path`` itself.

    Memory that ran out comes first, then another failure, each on the rank where it came first: one rank's failure ends
    the others. Without a failure it is the first rank's.

    Raises:
        SnapshotError: as :func:`snapshots_by_rank`.
        OSError: if a manifest can't be read.
    """
    if not path.is_dir():
        return RankSnapshot(path, None, '', 0)
    best = _best_by_rank(path)
    level = max(found.failure for found in best.values())
    when = {rank: (found.batch, found.time) for rank, found in best.items() if found.failure == level}
    rank = min(when, key=lambda rank: (when[rank], rank)) if level else min(when)
    return RankSnapshot(best[rank].file, rank, _FAILURES[level][1], len(best) - 1)


@dataclass(frozen=True)
class _Found:
    """A snapshot of a rank. ``time`` is the file's, which a copy may have changed, so the batch comes first."""

    failure: int
    batch: int
    time: float
    file: Path


def _best_by_rank(path: Path) -> dict[int, _Found]:
    best: dict[int, _Found] = {}
    for artifact in list_artifacts([path], recursive=True):
        entry = artifact.entry
        if entry.kind != _SNAPSHOT or entry.status == 'open':
            continue
        try:
            file = artifact.checked_path()
        except ValueError as error:
            raise SnapshotError(str(error)) from None
        if file.is_file():
            level = next((level for level, (mark, _) in enumerate(_FAILURES) if level and mark in file.name), 0)
            found = _Found(level, entry.batch, file.stat().st_mtime, file)
            best[entry.rank] = max(best.get(entry.rank, found), found, key=_tells)
    if not best:
        raise SnapshotError(f'no manifest in {path} lists a memory snapshot that exists')
    return best


def _tells(found: _Found) -> tuple[int, float, float]:
    """How much a snapshot tells: the first of a failure most, else the newest."""
    if found.failure:
        return found.failure, -found.batch, -found.time
    return 0, found.batch, found.time
