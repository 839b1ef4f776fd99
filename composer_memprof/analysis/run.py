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


def snapshots_by_rank(path: Path) -> dict[Optional[int], Path]:
    """The memory snapshot of each rank of the run in folder ``path``, or the file ``path`` itself as that of rank None.

    A rank's snapshot of a failure comes before its others, then the one of the latest batch.

    Raises:
        SnapshotError: if no manifest lists a snapshot that exists, or one lists a file outside its folder.
        OSError: if a manifest can't be read.
    """
    if not path.is_dir():
        return {None: path}
    best: dict[Optional[int], tuple[bool, int, float, Path]] = {}
    for artifact in list_artifacts([path], recursive=True):
        entry = artifact.entry
        if entry.kind != _SNAPSHOT or entry.status == 'open':
            continue
        try:
            file = artifact.checked_path()
        except ValueError as error:
            raise SnapshotError(str(error)) from None
        if file.is_file():
            of_failure = '.oom.' in file.name or '.exception.' in file.name
            found = (of_failure, entry.batch, file.stat().st_mtime, file)
            best[entry.rank] = max(best.get(entry.rank, found), found)
    if not best:
        raise SnapshotError(f'no manifest in {path} lists a memory snapshot that exists')
    return {rank: found[-1] for rank, found in sorted(best.items(), key=lambda item: item[0] or 0)}
