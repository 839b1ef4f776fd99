"""The report on a run: what happened on which rank, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

from composer_memprof.analysis.memory.pictures.over_time import CategoriesOverTime, categories_over_time
from composer_memprof.analysis.memory.snapshot_report import SnapshotReport, report_on
from composer_memprof.analysis.memory.summary import SnapshotSummary, summary_of
from composer_memprof.analysis.run import RANK_AND_BATCH, Artifact
from composer_memprof.analysis.run_report.across_kinds import RunFigures
from composer_memprof.analysis.run_report.advice.kinds import Advice
from composer_memprof.analysis.run_report.advice.of_memory import advice
from composer_memprof.analysis.run_report.attempts import RunAttempt, run_attempts
from composer_memprof.analysis.run_report.causes.kinds import Cause
from composer_memprof.analysis.run_report.causes.ranking import causes
from composer_memprof.analysis.run_report.comparison import Comparison, compared
from composer_memprof.analysis.run_report.differences import OddRank, RankTable, odd_ranks, rank_tables
from composer_memprof.analysis.run_report.failures import Failure, failures
from composer_memprof.analysis.run_report.figures import Figures
from composer_memprof.analysis.run_report.files import RunFiles, find_files, without_summarized
from composer_memprof.analysis.run_report.readers import KINDS
from composer_memprof.analysis.run_report.trials import Trials
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.analysis.snapshot.model import Snapshot
from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError
from composer_memprof.artifacts.reading.running import goes_on

_SUMMARY, _SNAPSHOT, _STEP_TIMES = 'memory_snapshot.summary', 'memory_snapshot', 'step_times'
#: Stands for a rank where a snapshot has none.
_FIRST_WITHOUT_RANK = 1 << 40
#: Spans of time of the chart.
_SPANS = 500


@dataclass(frozen=True)
class LeadSnapshot:
    """The snapshot that tells most: of the first failure, else with the largest peak.

    Args:
        rank (int): its rank.
        label (str): what to call the rank, as in :class:`RunReport`.
        path (Path): the file.
        report (SnapshotReport): on it.
        over_time (CategoriesOverTime, optional): of the device with the largest peak.
    """

    rank: int
    label: str
    path: Path
    report: SnapshotReport
    over_time: Optional[CategoriesOverTime]


@dataclass(frozen=True)
class RunReport:
    """The report on a run.

    Args:
        files (RunFiles): that it is about.
        ranks (list[int]): that left a file, in order.
        labels (dict[int, str]): what to call each rank: ``'rank 3'``, or the name of its file.
        failures (list[Failure]): the first one first.
        odd (list[OddRank]): ranks that differ, those of memory first.
        tables (list[RankTable]): the figures of all ranks, one for each kind of file.
        summaries (dict[int, SnapshotSummary]): the newest of each rank, of a failure if there was one.
        lead (LeadSnapshot, optional): None if there is no snapshot that can be read.
        contents (dict): the newest content by callback, such as ``'host_rss'``, and rank.
        advice (list[Advice]): what to change.
        status (dict[str, int]): number of files by status.
        unreadable (list[str]): a sentence for each file that could not be read.
        comparison (Comparison, optional): with another run, if one was given.
        lead_before (LeadSnapshot, optional): of that run.
        trials (Trials, optional): of the run on the simulated GPU, if they were asked for and could be made.
        not_tried (str): why they could not; ``''`` otherwise.
        open_ranks (list[int]): ranks with files that were not closed.
        goes_on (bool): True if a process has a manifest of the run open.
        attempts (list[RunAttempt]): that the manifests list, the first one first.
    """

    files: RunFiles
    ranks: list[int]
    labels: dict[int, str]
    failures: list[Failure]
    odd: list[OddRank]
    tables: list[RankTable]
    summaries: dict[int, SnapshotSummary]
    lead: Optional[LeadSnapshot]
    contents: dict[str, dict[int, Any]]
    advice: list[Advice]
    status: dict[str, int]
    unreadable: list[str] = field(default_factory=list)
    comparison: Optional[Comparison] = None
    trials: Optional[Trials] = None
    not_tried: str = ''
    open_ranks: list[int] = field(default_factory=list)
    goes_on: bool = False
    attempts: list[RunAttempt] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    lead_before: Optional[LeadSnapshot] = None

    @property
    def simulated(self) -> str:
        """The simulated GPU that the run was recorded on; ``''`` for a real device."""
        return ', '.join(sorted(_simulated_on(self.files, self.summaries)))


def report_on_paths(paths: Sequence[tuple[Path, str]], named: Callable[[str], str] = str) -> RunReport:
    """The report on paths, each with the name that the user gave it.

    Two runs are compared, or two snapshots of the same rank. Folders and snapshots of different ranks, or of the same
    processes, are one run.

    Raises:
        SnapshotError: if a folder has nothing to report on, or there are more than two runs.
        OSError: if a path can't be read.
    """
    given = [find_files([path], [name]) for path, name in paths]
    ranks = [rank for files in given for rank in _ranks_in(files)]
    if len(given) == 1:
        return report_on_run(given[0], named)
    if len(ranks) == len(set(ranks)) or _are_one_run(given):
        return report_on_run(find_files(*zip(*paths)), named)
    if len(given) > 2:
        raise SnapshotError('report compares two runs; of more than two it can report on one after the other')
    before, after = (report_on_run(files, named) for files in given)
    if not {*before.ranks} & {*after.ranks} and max(*before.ranks, *after.ranks, 0) < _FIRST_WITHOUT_RANK:
        return report_on_run(find_files(*zip(*paths)), named)  # snapshots whose content says that they are of two ranks
    return _compared(paths[0][1], before, after)


def compared_paths(before: tuple[Path, str], after: tuple[Path, str]) -> RunReport:
    """The report on the second path, compared with the first; each with the name that the user gave it.

    Raises:
        SnapshotError: if a folder has nothing to report on.
        OSError: if a path can't be read.
    """
    first, second = (report_on_run(find_files([path], [name])) for path, name in (before, after))
    return _compared(before[1], first, second)


def _compared(name: str, before: RunReport, after: RunReport) -> RunReport:
    first, second = (RunFigures(report.tables, report.contents.get('host_rss', {})) for report in (before, after))
    return replace(after, comparison=compared(name, first, second), lead_before=before.lead)


def _simulated_on(files: RunFiles, summaries: Mapping[int, SnapshotSummary]) -> set[str]:
    names = {artifact.entry.simulated for artifact in files.artifacts if artifact.entry.simulated}
    return names | {summary.meta.simulated for summary in summaries.values() if summary.meta.simulated}


def _ranks_in(files: RunFiles) -> set[Optional[int]]:
    """The ranks that left files; None for a snapshot whose name has none."""
    names = [RANK_AND_BATCH.search(path.name) for path in files.bare]
    bare = {int(name.group(1) or 0) if name is not None else None for name in names}
    return {artifact.entry.rank for artifact in files.artifacts} | bare


def _are_one_run(given: Sequence[RunFiles]) -> bool:
    """True if the same processes have written all folders, such as ``run/memprof`` and ``run/torch_traces``."""
    written_by = [
        {each.id for attempt in run_attempts(files.folders) for each in attempt.ranks.values()} for files in given
    ]
    return len(given) > 1 and bool(set.intersection(*written_by))


def report_on_run(files: RunFiles, named: Callable[[str], str] = str) -> RunReport:
    """Read the small files of all ranks, and one snapshot. A file that can't be read is named in ``unreadable``.

    Args:
        files (RunFiles): of the run.
        named (Callable): puts the names that the user gave into a message. Default: it is left as it is.
    """
    reading = _Reading()
    for artifact in without_summarized(files.artifacts):
        reading.take(artifact)
    snapshots = _snapshot_files(files.artifacts)
    for number, path in enumerate(files.bare):
        reading.take_bare(number, path, snapshots, alone=len(files.bare) == 1 and not files.artifacts)
    tables = rank_tables(reading.figures)
    odd = [each for table in tables for each in odd_ranks(table)]
    attempts = run_attempts(files.folders)
    last = attempts[-1] if attempts else None
    failed = failures(reading.summaries, last)
    lead = _lead(failed, reading, snapshots)
    ranks = sorted({*(artifact.entry.rank for artifact in files.artifacts), *reading.labels})
    contents = reading.contents
    summaries = {rank: summary for rank, (_, summary) in reading.summaries.items()}
    if _simulated_on(files, summaries):  # its kernels do not run, so that no time of it means anything
        contents.pop(_STEP_TIMES, None)
    found = causes(summaries, contents, _out_of_memory(lead, failed), ranks, last)
    status: dict[str, int] = {}
    open_ranks = sorted({artifact.entry.rank for artifact in files.artifacts if artifact.entry.status == 'open'})
    folders = {artifact.folder for artifact in files.artifacts}
    for artifact in files.artifacts:
        status[artifact.entry.status] = status.get(artifact.entry.status, 0) + 1
    return RunReport(
        files=files,
        ranks=ranks,
        labels={rank: reading.labels.get(rank, f'rank {rank}') for rank in ranks},
        failures=failed,
        attempts=attempts,
        odd=odd,
        tables=tables,
        summaries=summaries,
        lead=lead,
        contents=contents,
        causes=found,
        advice=advice(
            lead.report if lead is not None else None,
            found,
            contents,
            ranks,
            failed,
            last.ranks_in('killed') if last is not None else (),
        ),
        status=status,
        unreadable=list(map(named, reading.unreadable)),
        open_ranks=open_ranks,
        goes_on=bool(open_ranks) and any(goes_on(folder) for folder in folders),
    )


def _out_of_memory(lead: Optional[LeadSnapshot], failed: Sequence[Failure]) -> Optional[tuple[int, SnapshotReport]]:
    """The rank that ran out of memory first, and the report on its snapshot, if there is one."""
    if lead is None or not any(each.oom is not None and each.rank == lead.rank for each in failed):
        return None
    return lead.rank, lead.report


class _Reading:
    """What was read so far."""

    def __init__(self) -> None:
        self.figures: list[Figures] = []
        self.contents: dict[str, dict[int, Any]] = {}
        #: By rank: the batch, and the newest summary.
        self.summaries: dict[int, tuple[int, SnapshotSummary]] = {}
        self.labels: dict[int, str] = {}
        self.unreadable: list[str] = []

    def take(self, artifact: Artifact) -> None:
        """Read an artifact, if its kind has figures. The artifacts of a rank come as they were written."""
        entry = artifact.entry
        kind = KINDS.get(entry.kind)
        if kind is None or artifact.is_of_other_stage:  # which is not compared with training
            return
        try:
            path = artifact.checked_path()
            if not path.is_file():
                return  # it was uploaded and removed here, or is no plain file
            content = kind.read(path)
        except (OSError, ValueError) as error:  # also a FormatError, or a name that leaves the folder
            self.unreadable.append(str(error))
            return
        self.contents.setdefault(kind.shown, {})[entry.rank] = content
        figures = kind.figures(content, entry.rank, entry.batch)
        if figures is not None:
            self.figures.append(figures)
        if isinstance(content, SnapshotSummary):
            self.summaries[entry.rank] = (entry.batch, content)

    def take_bare(
        self, number: int, path: Path, snapshots: dict[int, list[tuple[int, Path]]], *, alone: bool = False
    ) -> None:
        """Read a snapshot that no manifest lists. One that does not say its rank is not compared with other ranks."""
        try:
            summary = summary_of(report_on(load_snapshot(path, limit_memory=True)))
        except (SnapshotError, OSError) as error:
            self.unreadable.append(str(error))
            return
        named = RANK_AND_BATCH.search(path.name)
        rank = summary.meta.rank if summary.meta.rank is not None else int(named[1]) if named else None
        batch = next((device.peak.batch for device in summary.devices if device.peak.batch is not None), number)
        key = _FIRST_WITHOUT_RANK + number if rank is None else rank
        self.labels[key] = path.name if rank is None else f'rank {rank}'
        snapshots.setdefault(key, []).append((batch, path))
        figures = KINDS[_SUMMARY].figures(summary, key, batch) if rank is not None or alone else None
        if figures is not None:
            self.figures.append(figures)
        self.summaries[key] = (batch, summary)


def _snapshot_files(artifacts: Sequence[Artifact]) -> dict[int, list[tuple[int, Path]]]:
    """The snapshots of each rank that exist, with their batches, in order of batch."""
    found: dict[int, list[tuple[int, Path]]] = {}
    for artifact in artifacts:
        if artifact.entry.kind == _SNAPSHOT and artifact.entry.status != 'open':
            try:
                path = artifact.checked_path()
            except ValueError:
                continue
            if path.is_file() and path.stat().st_size:  # of a store, only one snapshot was fetched
                found.setdefault(artifact.entry.rank, []).append((artifact.entry.batch, path))
    return found


def _lead(
    failures: Sequence[Failure],
    reading: _Reading,
    snapshots: dict[int, list[tuple[int, Path]]],
) -> Optional[LeadSnapshot]:
    by_peak = sorted(
        reading.summaries,
        key=lambda rank: -reading.summaries[rank][1].peak_bytes,
    )
    wanted = [*(each.rank for each in failures), *by_peak]
    for rank in dict.fromkeys([*wanted, *sorted(snapshots)]):
        batch = reading.summaries[rank][0] if rank in reading.summaries else None
        # The file of the chosen summary's batch, else the newest; of two files of a batch the later one, of the failure.
        files = [(of == batch, of, number, path) for number, (of, path) in enumerate(snapshots.get(rank, []))]
        for *_, path in sorted(files, reverse=True):
            try:
                label = reading.labels.get(rank, f'rank {rank}')
                return _lead_of(rank, label, path, load_snapshot(path, limit_memory=True))
            except (SnapshotError, OSError) as error:
                reading.unreadable.append(str(error))
    return None


def _lead_of(rank: int, label: str, path: Path, snapshot: Snapshot) -> LeadSnapshot:
    report = report_on(snapshot)
    over_time = None
    if report.largest_device is not None:
        device = report.largest_device.device
        history = next(history for history in snapshot.devices if history.device == device)
        over_time = categories_over_time(snapshot, history, _SPANS)
    return LeadSnapshot(rank, label, path, report, over_time)
