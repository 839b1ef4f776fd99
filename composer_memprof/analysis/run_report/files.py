"""The files to report on: of runs, by their manifests, and memory snapshots of any program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from composer_memprof.analysis.run import Artifact, list_artifacts
from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError
from composer_memprof.artifacts.compression import suffixes

#: What a snapshot's name ends with, before the suffix of a compression.
_SNAPSHOT_SUFFIXES = ('.pickle', '.pkl')
#: Most snapshots without a manifest that are read, in order of their names.
MOST_BARE_SNAPSHOTS = 64


@dataclass(frozen=True)
class RunFiles:
    """The files to report on.

    Args:
        name (str): of the run, or of what was given.
        artifacts (list[Artifact]): that the manifests list, in order of batch and rank.
        bare (list[Path]): memory snapshots that no manifest lists.
        left_out (int): number of such snapshots beyond the first 64.
    """

    name: str
    artifacts: list[Artifact]
    bare: list[Path]
    left_out: int = 0


def find_files(paths: Sequence[Path]) -> RunFiles:
    """The files of runs' folders, of folders of snapshots, and single snapshots.

    A folder with a manifest at any depth is a run's, and only what its manifests list is read.

    Raises:
        SnapshotError: if a folder has neither a manifest nor a snapshot.
        OSError: if a path can't be read.
    """
    artifacts: list[Artifact] = []
    bare: list[Path] = []
    for path in paths:
        if path.is_dir():
            listed = list_artifacts([path], recursive=True)
            found = [] if listed else sorted(each for each in path.rglob('*') if _is_snapshot(each))
            if not listed and not found:
                raise SnapshotError(f'{path} has neither a manifest of a run nor a memory snapshot (*.pickle)')
            artifacts += listed
            bare += found
        else:
            path.stat()  # raises an error that names it
            bare.append(path)
    names = {artifact.entry.run_name for artifact in artifacts}
    name = ', '.join(sorted(names)) if names and not bare else ', '.join(path.resolve().name for path in paths)
    return RunFiles(name, artifacts, bare[:MOST_BARE_SNAPSHOTS], max(len(bare) - MOST_BARE_SNAPSHOTS, 0))


def _is_snapshot(path: Path) -> bool:
    name = path.name
    for suffix in suffixes():
        name = name.removesuffix(suffix)
    return name.endswith(_SNAPSHOT_SUFFIXES) and path.is_file()


def of_kind(artifacts: Iterable[Artifact], kind: str) -> list[Artifact]:
    """The artifacts of one kind that are complete, or grow."""
    return [artifact for artifact in artifacts if artifact.entry.kind == kind]
