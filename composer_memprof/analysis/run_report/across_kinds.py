"""Figures of two runs that say the same of each, though files of different callbacks have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from composer_memprof.analysis.run_report.differences import RankTable
from composer_memprof.analysis.run_report.figures import TOTAL
from composer_memprof.recorders.host.summary import HostSummary

#: What is compared: in words, with its unit, and the kinds of files whose total it is.
_SAME = (
    ('the peak of memory is', 'bytes', ('memory_snapshot', 'fsdp_mem_tracker')),
    ('a batch takes', 'seconds', ('step_times', 'host_rss')),
)
_HOST = 'host_rss'


@dataclass(frozen=True)
class Across:
    """One figure of two runs, of files of two kinds.

    Args:
        what (str): it is, with a verb: ``'the peak of memory is'``.
        unit (str): ``'bytes'`` or ``'seconds'``.
        before (float): of the first run.
        before_kind (str): of the file that has it.
        after (float): of the second run.
        after_kind (str): likewise.
    """

    what: str
    unit: str
    before: float
    before_kind: str
    after: float
    after_kind: str


@dataclass(frozen=True)
class RunFigures:
    """The figures of a run.

    Args:
        tables (Sequence[RankTable]): of all ranks, one for each kind of file.
        hosts (Mapping): the recordings of host memory, by rank.
    """

    tables: Sequence[RankTable]
    hosts: Mapping[int, HostSummary]

    @property
    def kinds(self) -> list[str]:
        """The kinds of files that have figures."""
        return [table.kind for table in self.tables]


def across_kinds(before: RunFigures, after: RunFigures) -> list[Across]:
    """What both runs have in files of different kinds, and in none of the same."""
    return list(_found(before, after))


def _found(before: RunFigures, after: RunFigures) -> Iterator[Across]:
    for what, unit, kinds in _SAME:
        if any(kind in before.kinds and kind in after.kinds for kind in kinds if unit == 'bytes' or kind != _HOST):
            continue
        old, new = (next(filter(None, (_value(run, kind, unit) for kind in kinds)), None) for run in (before, after))
        if old is not None and new is not None:
            yield Across(what, unit, old[0], old[1], new[0], new[1])


def _value(run: RunFigures, kind: str, unit: str) -> Optional[tuple[float, str]]:
    """A kind's figure, of the rank that has most, and the kind; None if the run has none."""
    if unit == 'seconds' and kind == _HOST:
        seconds = [found for file in run.hosts.values() if (found := _seconds_a_batch(file)) is not None]
        return (max(seconds), kind) if seconds else None
    for table in run.tables:
        rows: list[Any] = [row for (group, _), row in zip(table.names, table.values) if group == TOTAL]
        if table.kind == kind and rows and not np.isnan(rows[0]).all():
            return float(np.nanmax(rows[0])), kind
    return None


def _seconds_a_batch(file: HostSummary) -> Optional[float]:
    """The mean, by the times of samples; None for too few batches."""
    batch, seconds = file.over_time.batch, file.over_time.seconds
    if len(batch) < 2 or batch[-1] - batch[0] < 2:
        return None
    return (seconds[-1] - seconds[0]) / (batch[-1] - batch[0])
