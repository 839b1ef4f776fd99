"""Which snapshots to look at: a file itself, or of a run's folder that of its failure, else the newest, of each rank."""

from __future__ import annotations

from pathlib import Path

from composer_memprof.analysis.snapshot.loading import SnapshotError
from composer_memprof.artifacts.manifest import Entry, find_manifests, read_manifest

_KIND = 'memory_snapshot'


def snapshots_of(path: Path) -> dict[int | None, Path]:
    """The snapshots at ``path``, by rank: a file alone has rank None.

    Raises:
        SnapshotError: if the folder's manifests list no snapshot that is there, or one outside of the folder.
        OSError: if it can't be read.
    """
    if not path.is_dir():
        return {None: path}
    newest: dict[int | None, tuple[bool, int, float, Path]] = {}
    for manifest in find_manifests(path):
        for entry in read_manifest(manifest):
            if entry.kind != _KIND or entry.status in ('removed', 'open'):
                continue
            file = _inside(manifest.parent, entry)
            if not file.is_file():
                continue
            of_failure = any(f'.{mark}.' in file.name for mark in ('oom', 'exception'))
            found = (of_failure, entry.batch, file.stat().st_mtime, file)
            newest[entry.rank] = max(newest.get(entry.rank, found), found)
    if not newest:
        raise SnapshotError(f'{path} has no manifest that lists a memory snapshot which is there')
    return {rank: found[-1] for rank, found in sorted(newest.items(), key=lambda item: item[0] or 0)}


def _inside(folder: Path, entry: Entry) -> Path:
    home = folder.resolve()
    try:
        file = (home / entry.path).resolve()
    except (OSError, ValueError, RuntimeError):  # a name that no file can have, or links that go round
        file = home
    if home not in file.parents:
        raise SnapshotError(f'{folder} has a manifest that names {entry.path[:80]!r}, which leaves its folder')
    return file
