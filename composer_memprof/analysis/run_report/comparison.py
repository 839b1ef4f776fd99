"""What changed from one run to another."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from composer_memprof.analysis.run_report.across_kinds import Across, RunFigures, across_kinds
from composer_memprof.analysis.run_report.differences import Difference, RankTable
from composer_memprof.analysis.run_report.figures import CATEGORY, TOTAL


@dataclass(frozen=True)
class Change:
    """One kind of figures in both runs: of bytes the most of any rank, of times and FLOPs the median of the ranks.

    Args:
        kind (str): of the files.
        unit (str): of the figures.
        figures (list[Difference]): each figure that both runs have, and each category of bytes, 0 where a run has none:
            ``value`` of the second run, ``others`` of the first. The total comes first, then what changed most.
    """

    kind: str
    unit: str
    figures: list[Difference]

    @property
    def total(self) -> Difference:
        return self.figures[0]


@dataclass(frozen=True)
class Comparison:
    """Two runs.

    Args:
        before (str): name of the first run.
        changes (list[Change]): of each kind that both have, memory first.
        across (list[Across]): what files of different kinds say of both.
        kinds_before (list[str]): of the first run's files with figures.
        kinds_after (list[str]): of the second one's.
    """

    before: str
    changes: list[Change]
    across: list[Across] = field(default_factory=list)
    kinds_before: list[str] = field(default_factory=list)
    kinds_after: list[str] = field(default_factory=list)


def compared(name: str, before: RunFigures, after: RunFigures) -> Comparison:
    """The second run's figures beside those of the first one, which has this name."""
    first = {table.kind: table for table in before.tables}
    found = [_change(first[table.kind], table) for table in after.tables if table.kind in first]
    changes = [change for change in found if change.figures]
    return Comparison(name, changes, across_kinds(before, after), before.kinds, after.kinds)


def _change(before: RankTable, after: RankTable) -> Change:
    old, new = _in_all(before), _in_all(after)
    if after.unit == 'bytes':
        _fill_categories(old, new)
    figures = [
        Difference(group, name, value, old[group, name]) for (group, name), value in new.items() if (group, name) in old
    ]
    figures.sort(key=lambda each: (each.group != TOTAL, -abs(each.value - each.others)))
    return Change(after.kind, after.unit, figures)


def _fill_categories(*runs: dict[tuple[str, str], float]) -> None:
    """Where each run has categories, one that a run has not holds nothing. Modules and phases may have other names."""
    categories = [[name for name in run if name[0] == CATEGORY] for run in runs]
    if all(categories):
        for run in runs:
            for name in itertools.chain(*categories):
                run.setdefault(name, 0.0)


def _in_all(table: RankTable) -> dict[tuple[str, str], float]:
    known = [~np.isnan(row) for row in table.values]
    of_ranks = np.max if table.unit == 'bytes' else np.median
    return {
        name: float(of_ranks(row[there])) for name, row, there in zip(table.names, table.values, known) if there.any()
    }
