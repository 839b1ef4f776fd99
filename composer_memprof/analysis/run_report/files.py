"""The files to report on: of runs, by their manifests, and memory snapshots of any program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Optional

from composer_memprof.analysis.run import (
    RANK_AND_BATCH,
    Artifact,
    LeftOutWindows,
    is_snapshot_name,
    left_out_windows,
    list_artifacts,
    snapshot_to_show,
)
from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError
from composer_memprof.artifacts.naming.compression import strip_suffix
from composer_memprof.artifacts.reading.manifest import Entry
from composer_memprof.messages import printable

#: The names that the callbacks give by default, by kind. The first that matches counts.
_NAMES = {
    'memory_snapshot': re.compile(r'\.memory_snapshot(\.\w+)*\.pickle$'),
    'memory_snapshot.summary': re.compile(r'\.memory_snapshot(\.\w+)*\.summary\.json$'),
    'memory_snapshot.growing': re.compile(r'\.memory_snapshot(\.\w+)*\.growing\.json$'),
    'fsdp_mem_tracker.summary': re.compile(r'^fsdp_mem_rank_.*\.summary\.json$'),
    'fsdp_mem_tracker.json': re.compile(r'^fsdp_mem_rank_.*\.json$'),
    'saved_tensors_hook': re.compile(r'\.saved_tensors(\.\w+)*\.json$'),
    'host_rss.growing': re.compile(r'\.host_rss(\.\w+)*\.growing\.json$'),
    'host_rss.summary': re.compile(r'\.host_rss(\.\w+)*\.summary\.json$'),
    'host_rss': re.compile(r'\.host_rss(\.\w+)*\.jsonl$'),
    'step_times.summary': re.compile(r'\.step_times(\.\w+)*\.summary\.json$'),
    'flops': re.compile(r'\.flops(\.\w+)*\.json$'),
}
#: The kinds that have figures.
FIGURES = tuple(kind for kind in _NAMES if kind != 'memory_snapshot')
#: The kinds of whole files that may have a summary beside them, and the summary's kind.
_SUMMARY_OF = {'fsdp_mem_tracker.json': 'fsdp_mem_tracker.summary', 'host_rss': 'host_rss.summary'}
_SUMMARY_SUFFIX = '.summary.json'
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
        stored (bool): True if they are copies from a store, which a page can't link to.
        windows_left_out (list[LeftOutWindows]): that the manifests list.
        folders (list[Path]): that were given, with manifests in them.
    """

    name: str
    artifacts: list[Artifact]
    bare: list[Path]
    left_out: int = 0
    stored: bool = False
    windows_left_out: list[LeftOutWindows] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)


def find_files(paths: Sequence[Path], names: Optional[Sequence[str]] = None) -> RunFiles:
    """The files of runs' folders, of folders of snapshots, and single snapshots.

    A folder with a manifest at any depth is a run's, and only what its manifests list is read. Stores have no manifests:
    without one, files are known by their names.

    Args:
        paths (Sequence[Path]): of them.
        names (Sequence[str], optional): what the user called them, such as addresses in a store. Default: the paths.

    Raises:
        SnapshotError: if a folder has neither a manifest nor a snapshot.
        OSError: if a path can't be read.
    """
    artifacts: list[Artifact] = []
    bare: list[Path] = []
    for path in paths:
        if path.is_dir():
            listed = list_artifacts([path], recursive=True, as_written=True) or _by_name(path)
            found = [] if listed else sorted(each for each in path.rglob('*') if _is_snapshot(each))
            if not listed and not found:
                raise SnapshotError(f'{path} has neither a manifest of a run nor a memory snapshot (*.pickle)')
            _check_one_run(path, listed)
            artifacts += listed
            bare += found
        else:
            path.stat()  # raises an error that names it
            bare.append(path)
    stored = names is not None and list(names) != list(map(str, paths))
    given = (
        [name.rstrip('/').rpartition('/')[2] for name in names]
        if names and stored
        else [path.resolve().name for path in paths]
    )
    runs = sorted({artifact.entry.run_name for artifact in artifacts if artifact.entry.run_name})
    name = ', '.join(runs if runs and not bare else given)
    more = max(len(bare) - MOST_BARE_SNAPSHOTS, 0)
    folders = [path for path in paths if path.is_dir()]
    return RunFiles(name, artifacts, bare[:MOST_BARE_SNAPSHOTS], more, stored, left_out_windows(folders), folders)


def _check_one_run(path: Path, artifacts: Sequence[Artifact]) -> None:
    runs: dict[int, set[str]] = {}
    for artifact in artifacts:
        runs.setdefault(artifact.entry.rank, set()).add(artifact.entry.run_name)
    most = max(runs.values(), key=len, default=set())
    if len(most) > 1:
        named = ', '.join(sorted(map(printable, most))[:5])
        raise SnapshotError(f'{path} holds several runs: {named}; report on one of them, or on two to compare them')


def files_to_fetch(folder: Path) -> list[Path]:
    """Of a folder whose manifests are there, and whose other files are empty: those that a report reads."""
    try:
        artifacts = find_files([folder]).artifacts
    except SnapshotError:
        artifacts = []
    small = [artifact.path for artifact in without_summarized(artifacts) if artifact.entry.kind in FIGURES]
    try:
        return [*small, snapshot_to_show(folder).path]
    except SnapshotError:
        if not small:
            raise
        return small


def without_summarized(artifacts: Sequence[Artifact]) -> list[Artifact]:
    """The artifacts without whole files whose summary is there too: the file of the same name that ends in ``.summary.json``."""
    summaries = {
        (artifact.entry.kind, str(artifact.path).removesuffix(_SUMMARY_SUFFIX))
        for artifact in artifacts
        if artifact.entry.kind in _SUMMARY_OF.values() and artifact.path.is_file()
    }
    return [
        artifact
        for artifact in artifacts
        if (_SUMMARY_OF.get(artifact.entry.kind), strip_suffix(str(artifact.path)).rpartition('.')[0]) not in summaries
    ]


def kind_by_name(name: str) -> str:
    """The kind of an artifact from its file's name, as the callbacks name them by default; ``''`` if it is not known.

    >>> kind_by_name('rank3.20.memory_snapshot.oom.summary.json'), kind_by_name('rank3.20.pt.trace.json.gz')
    ('memory_snapshot.summary', '')
    """
    plain = strip_suffix(name)
    return next((kind for kind, pattern in _NAMES.items() if pattern.search(plain)), '')


def files_by_name(path: Path) -> list[Artifact]:
    """All files of a folder without a manifest, such as a copy from a store, as far as their names tell of them.

    A file whose content is not here has no size.
    """
    found = []
    for file in sorted(each for each in path.rglob('*') if each.is_file()):
        place = RANK_AND_BATCH.search(file.name)
        rank, batch = (int(number or 0) for number in place.groups()) if place else (0, 0)
        name, size = str(file.relative_to(path)), file.stat().st_size or None
        entry = Entry(kind_by_name(file.name), name, None, size, None, rank, '', 0, batch, 'uploaded')
        found.append(Artifact(path, entry))
    return sorted(found, key=lambda artifact: (artifact.entry.batch, artifact.entry.rank))


def _by_name(path: Path) -> list[Artifact]:
    """The artifacts of known kinds in a folder without a manifest; empty without any small file."""
    found = [
        replace(artifact, entry=replace(artifact.entry, bytes=artifact.path.stat().st_size, status='saved'))
        for artifact in files_by_name(path)
        if artifact.entry.kind and RANK_AND_BATCH.search(artifact.path.name)
    ]
    has_figures = any(artifact.entry.kind != 'memory_snapshot' for artifact in found)
    return found if has_figures else []


def _is_snapshot(path: Path) -> bool:
    return is_snapshot_name(path.name) and path.is_file()
