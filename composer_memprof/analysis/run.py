"""The files of a run, from its manifests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError
from composer_memprof.artifacts.naming.compression import suffixes
from composer_memprof.artifacts.reading.containment import inside
from composer_memprof.artifacts.reading.manifest import PATTERN, Entry, find_manifests, read_manifest

_SNAPSHOT = 'memory_snapshot'
#: What a snapshot's name ends with, before the suffix of a compression.
_SNAPSHOT_SUFFIXES = ('.pickle', '.pkl')
#: The rank, and the batch if there is one, in the name of a snapshot; and its mark of memory that ran out.
RANK_AND_BATCH = re.compile(r'rank[_-]?(\d{1,9})(?:\.(\d{1,15})\b)?')
_OOM_IN_NAME = re.compile(r'(?<![a-z])oom(?![a-z])')
#: Marks in the name of a snapshot that was taken for a failure, the worst last, and what happened to its rank.
_FAILURES = (('', ''), ('.exception.', 'failed'), ('.oom.', 'ran out of memory'))

#: Most ranks, or ranges of ranks, that a list of them names.
_MOST_RANKS = 12
#: In the names of files of evaluation and prediction.
_OTHER_STAGE = re.compile(r'[._](eval|predict)[._\d]')


@dataclass(frozen=True)
class Artifact:
    """A file that a manifest lists, and the manifest's folder."""

    folder: Path
    entry: Entry

    @property
    def path(self) -> Path:
        """As the manifest says; see :meth:`checked_path` for manifests that are not trusted."""
        return self.folder / self.entry.path

    @property
    def is_of_other_stage(self) -> bool:
        """True for a file of evaluation or prediction, by its name."""
        return _OTHER_STAGE.search(self.entry.path) is not None

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


def list_artifacts(folders: Iterable[Path], recursive: bool = False, as_written: bool = False) -> list[Artifact]:
    """The files that manifests in ``folders`` list, without removed and skipped ones, in order of batch and rank.

    Args:
        folders (Iterable[Path]): where the manifests are.
        recursive (bool): also read manifests in their subfolders. Default: ``False``.
        as_written (bool): in the order of each manifest in place of that of batches. Default: ``False``.

    Raises:
        OSError: if a manifest can't be read.
    """
    artifacts = [
        Artifact(manifest.parent, entry)
        for folder in sorted(folders)
        for manifest in find_manifests(folder)
        if recursive or manifest.parent == folder
        for entry in read_manifest(manifest)
        if entry.status not in ('removed', 'skipped')
    ]
    return artifacts if as_written else sorted(artifacts, key=lambda found: (found.entry.batch, found.entry.rank))


@dataclass(frozen=True)
class LeftOutWindows:
    """The windows of one kind that were left out.

    Args:
        kind (str): of a window's main file.
        count (int): of all ranks.
        reasons (list[str]): why; each in its newest words.
    """

    kind: str
    count: int
    reasons: list[str]


def left_out_windows(folders: Iterable[Path]) -> list[LeftOutWindows]:
    """What the manifests in ``folders``, at any depth, list as skipped.

    Raises:
        OSError: if a manifest can't be read.
    """
    manifests = [manifest for folder in folders for manifest in find_manifests(folder)]
    skipped = [entry for manifest in manifests for entry in read_manifest(manifest) if entry.status == 'skipped']
    found = []
    for kind in sorted({entry.kind for entry in skipped}):
        reasons = [entry.reason or 'no reason is listed' for entry in skipped if entry.kind == kind]
        newest = {reason.partition(':')[0]: reason for reason in reasons}  # figures after it differ
        found.append(LeftOutWindows(kind, len(reasons), list(newest.values())))
    return found


@dataclass(frozen=True)
class RankSnapshot:
    """The snapshot of one rank that tells most.

    Args:
        path (Path): the file.
        rank (int, optional): None for a file that was named itself.
        failure (str): ``'ran out of memory'``, ``'failed'``, or ``''``.
        others (int): number of further ranks that have a snapshot.
        ranks (list[int]): the ranks that have a snapshot, ascending; empty for a file that was named itself.
        failed (dict[int, str]): what happened to each rank that failed.
        entry (Entry, optional): its line of the manifest, if there is one.
    """

    path: Path
    rank: Optional[int]
    failure: str
    others: int
    ranks: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    entry: Optional[Entry] = None


def snapshots_by_rank(path: Path) -> dict[Optional[int], Path]:
    """The memory snapshot of each rank of the run in folder ``path``, or the file ``path`` itself as that of rank None.

    A rank's first snapshot of memory that ran out comes first, then its first of another failure, then that of its latest
    batch. Where no manifest lists a snapshot, as in a store or of another program, those that are there count.

    Raises:
        SnapshotError: if there is none, or a manifest lists a file outside its folder.
        OSError: if a manifest can't be read.
    """
    if not path.is_dir():
        return {None: path}
    best = _best_by_rank(path)
    return {rank: found.file for rank, found in sorted(best.items())}


def snapshot_to_show(path: Path, rank: Optional[int] = None) -> RankSnapshot:
    """The snapshot of the run in folder ``path`` that tells most, or the file ``path`` itself.

    Memory that ran out comes first, then another failure, each on the rank where it came first: one rank's failure ends
    the others. Without a failure it is the first rank's.

    Args:
        path (Path): a run's folder, or a snapshot.
        rank (int, optional): of this rank. Default: of the rank that tells most.

    Raises:
        SnapshotError: as :func:`snapshots_by_rank`; or if ``rank`` has no snapshot, or ``path`` is a file.
        OSError: if a manifest can't be read.
    """
    if not path.is_dir():
        if rank is not None:
            raise SnapshotError(f"rank {rank} can be chosen in a run's folder; {path} is one file")
        return RankSnapshot(path, None, '', 0, entry=_entry_of(path))
    best = _best_by_rank(path)
    chosen = _rank_that_tells_most(best) if rank is None else rank
    if chosen not in best:
        raise SnapshotError(f'rank {rank} has no memory snapshot in {path}; ranks with a snapshot: {rank_list(best)}')
    found = best[chosen]
    return RankSnapshot(
        path=found.file,
        rank=chosen,
        failure=_FAILURES[found.failure][1],
        others=len(best) - 1,
        ranks=sorted(best),
        failed={rank: _FAILURES[best[rank].failure][1] for rank in sorted(best) if best[rank].failure},
        entry=found.entry,
    )


def _entry_of(file: Path) -> Optional[Entry]:
    """The line of a manifest in the file's folder that lists it."""
    for manifest in sorted(file.parent.glob(PATTERN)):
        for entry in read_manifest(manifest):
            if entry.path == file.name:
                return entry
    return None


def rank_list(ranks: Iterable[int], most: int = _MOST_RANKS) -> str:
    """Ranks for people, neighbors as a range: ``'0, 1, 3'``, ``'0-63, 80'``. At most ``most`` parts.

    >>> rank_list([0, 1, 3])
    '0, 1, 3'
    >>> rank_list([*range(512), 700, 701])
    '0-511, 700, 701'
    """
    found = sorted(ranks)
    parts: list[tuple[int, int]] = []
    for rank in found:
        if parts and parts[-1][1] == rank - 1:
            parts[-1] = (parts[-1][0], rank)
        else:
            parts.append((rank, rank))
    # A range is worth its dash from three ranks on.
    texts = [
        text
        for first, last in parts
        for text in ([f'{first}-{last}'] if last - first > 1 else map(str, range(first, last + 1)))
    ]
    shown = ', '.join(texts[:most])
    return shown if len(texts) <= most else f'{shown}, … ({len(found)} ranks)'


def _rank_that_tells_most(best: dict[int, _Found]) -> int:
    level = max(found.failure for found in best.values())
    when = {rank: (found.batch, found.time) for rank, found in best.items() if found.failure == level}
    return min(when, key=lambda rank: (when[rank], rank)) if level else min(when)


@dataclass(frozen=True)
class _Found:
    """A snapshot of a rank. ``time`` is the file's, which a copy may have changed, so the batch comes first."""

    failure: int
    batch: int
    time: float
    file: Path
    entry: Optional[Entry]


def _best_by_rank(path: Path) -> dict[int, _Found]:
    best = _best_listed(path) or _best_not_listed(path)
    if not best:
        raise SnapshotError(f'there is no memory snapshot in {path}, neither in a manifest nor a *.pickle')
    return best


def is_snapshot_name(name: str) -> bool:
    """True if a file of this name may be a memory snapshot, compressed or not.

    >>> is_snapshot_name('rank0.4.memory_snapshot.pickle.gz')
    True
    """
    for suffix in suffixes():
        name = name.removesuffix(suffix)
    return name.endswith(_SNAPSHOT_SUFFIXES)


def _best_not_listed(path: Path) -> dict[int, _Found]:
    """In a folder without a manifest's snapshots: by the ranks in the names of the files, else as those of rank 0."""
    best: dict[int, _Found] = {}
    for file in sorted(path.rglob('*')):
        if not is_snapshot_name(file.name) or not file.is_file():
            continue
        found = RANK_AND_BATCH.search(file.name)
        rank, batch = (int(number or 0) for number in found.groups()) if found else (0, 0)
        level = 2 if _OOM_IN_NAME.search(file.name) else 1 if '.exception.' in file.name else 0
        one = _Found(level, batch, file.stat().st_mtime, file, None)
        best[rank] = max(best.get(rank, one), one, key=_tells)
    return best


def _best_listed(path: Path) -> dict[int, _Found]:
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
            found = _Found(level, entry.batch, file.stat().st_mtime, file, entry)
            best[entry.rank] = max(best.get(entry.rank, found), found, key=_tells)
    return best


def _tells(found: _Found) -> tuple[int, float, float]:
    """How much a snapshot tells: the first of a failure most, else the newest."""
    if found.failure:
        return found.failure, -found.batch, -found.time
    return 0, found.batch, found.time
