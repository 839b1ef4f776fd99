"""Ranks that differ from the others, and in what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from composer_memprof.analysis.run_report.figures import CATEGORY, MODULE, PHASE, TOTAL, Figures

#: A rank differs by more than this share of the median, and by more than six times what is usual among the ranks.
_SHARE, _USUAL = 0.05, 6.0
#: The kinds in the order in which they tell of memory.
_KINDS = ('memory_snapshot', 'fsdp_mem_tracker', 'saved_tensors_hook', 'host_rss', 'step_times', 'flops')
#: The median absolute deviation of normal values, times this, is their standard deviation.
_TO_DEVIATION = 1.4826
#: Times and host memory vary from rank to rank, so that a smaller share of them says nothing.
_SHARES = {'step_times': 0.25, 'host_rss': 0.25}
#: A part is named if it is at least this share of a difference.
_EXPLAINS = 0.1


@dataclass(frozen=True)
class Difference:
    """One figure of a rank beside the median of the other ranks.

    Args:
        group (str): as in :class:`Figures`.
        name (str): of the figure.
        value (float): of this rank.
        others (float): the median of the other ranks.
    """

    group: str
    name: str
    value: float
    others: float

    @property
    def factor(self) -> float:
        """How many times the others' median this rank has; infinite if theirs is 0."""
        return self.value / self.others if self.others else float('inf')


@dataclass(frozen=True)
class OddRank:
    """A rank that differs.

    Args:
        rank (int): the rank.
        kind (str): of the files that were compared.
        unit (str): of the figures.
        ranks (int): how many were compared, this one included.
        total (Difference): the figure that stands for all.
        most (list[Difference]): the category, the module and the phase, where there are any, that differ most.
    """

    rank: int
    kind: str
    unit: str
    ranks: int
    total: Difference
    most: list[Difference]


@dataclass(frozen=True)
class RankTable:
    """One kind of figures of all ranks, of the newest batch that most ranks have.

    Args:
        kind (str): of the files.
        unit (str): of the figures.
        batch (int): the batch.
        ranks (list[int]): in order.
        names (list[tuple[str, str]]): group and name of each row.
        values (ndarray): float64, a row for each name, a column for each rank; NaN where a rank has none.
    """

    kind: str
    unit: str
    batch: int
    ranks: list[int]
    names: list[tuple[str, str]]
    values: np.ndarray

    def ratios(self) -> np.ndarray:
        """Each value divided by the median of its row; 1 where both are 0."""
        middle = np.nanmedian(self.values, axis=1, keepdims=True) if self.values.size else np.ones((0, 1))
        with np.errstate(divide='ignore', invalid='ignore'):
            return np.where((self.values == 0) & (middle == 0), 1.0, self.values / middle)


def rank_tables(figures: Sequence[Figures]) -> list[RankTable]:
    """The figures as one table for each kind: memory first, then what else was recorded."""
    by_kind: dict[str, list[Figures]] = {}
    for each in sorted(figures, key=lambda each: _KINDS.index(each.kind)):
        by_kind.setdefault(each.kind, []).append(each)
    return [_table(of_kind) for of_kind in by_kind.values()]


def _table(figures: list[Figures]) -> RankTable:
    having = Counter(batch for batch, _ in {(each.batch, each.rank) for each in figures})
    last = {each.batch: place for place, each in enumerate(figures)}  # each rank's come as they were written
    batch = max(having, key=lambda batch: (having[batch], last[batch]))
    # Where ranks were saved at different batches, such as after a failure, each has its newest.
    newest = {each.rank: each for each in sorted(figures, key=lambda each: each.batch == batch)}
    ranks = sorted(newest)
    names = list(
        dict.fromkeys(
            (group, name) for rank in ranks for group, values in newest[rank].values.items() for name in values
        )
    )
    row_of = {name: row for row, name in enumerate(names)}
    values = np.full((len(names), len(ranks)), np.nan)
    for column, rank in enumerate(ranks):
        for group, of_group in newest[rank].values.items():
            for name, value in of_group.items():
                values[row_of[group, name], column] = value
    first = figures[0]
    return RankTable(first.kind, first.unit, batch, ranks, names, values)


def odd_ranks(table: RankTable) -> list[OddRank]:
    """The ranks whose total differs from the others', largest difference first; of times, each phase counts too."""
    total = next((row for row, (group, _) in enumerate(table.names) if group == TOTAL), None)
    if len(table.ranks) < 2 or total is None:
        return []
    rows = [total] + [row for row, (group, _) in enumerate(table.names) if group == PHASE and table.unit == 'seconds']
    found: dict[int, tuple[float, OddRank]] = {}
    for row in rows:
        for column, distance, middle in _odd_columns(table, row, table.values[total]):
            # The first figure in which a rank is odd is told.
            found.setdefault(column, (distance, _odd_rank(table, row, column, middle)))
    return [odd for _, odd in sorted(found.values(), key=lambda each: -each[0])]


def _odd_columns(table: RankTable, row: int, totals: np.ndarray) -> list[tuple[int, float, float]]:
    """The columns that are odd in a row: each with its distance from the median of the others, and that median."""
    values = table.values[row]
    if np.count_nonzero(~np.isnan(values)) < 2:
        return []
    middle = _median_of_others(values)
    distance = _distance_to_others(values)
    usual = np.nanmedian(np.abs(values - np.nanmedian(values))) * _TO_DEVIATION if len(values) > 2 else 0.0
    share = _SHARES.get(table.kind, _SHARE)
    # A phase is odd if it matters beside the whole batch.
    least = share * np.maximum(np.abs(middle), np.nanmedian(totals) if table.names[row][0] != TOTAL else 0.0)
    odd = np.flatnonzero(distance > np.maximum(least, _USUAL * usual))
    if len(table.ranks) == 2:  # each differs from the other: the larger one is named
        odd = odd[values[odd] > middle[odd]]
    return [(column, float(distance[column]), float(middle[column])) for column in odd.tolist()]


def _median_of_others(values: np.ndarray) -> np.ndarray:
    """For each value the median of all others."""
    return np.array([_median(np.delete(values, place)) for place in range(len(values))])


def _distance_to_others(values: np.ndarray) -> np.ndarray:
    """For each value how far it is from the median of all others. Between the middle two of them it is not away at all:
    of three ranks, one of which is large, the two others are alike.
    """
    found = np.full(len(values), np.nan)
    for place, value in enumerate(values):
        others = np.sort(np.delete(values, place))  # NaN comes last
        others = others[: np.count_nonzero(~np.isnan(others))]
        if len(others):
            found[place] = abs(value - np.clip(value, others[(len(others) - 1) // 2], others[len(others) // 2]))
    return found


def _median(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float('nan')


def _odd_rank(table: RankTable, row: int, column: int, middle: float) -> OddRank:
    group, name = table.names[row]
    total = Difference(group, name, float(table.values[row, column]), middle)
    change = total.value - total.others
    most = []
    for part in (CATEGORY, MODULE, PHASE):
        found = [
            Difference(
                part, of_name, float(table.values[of_row, column]), _median(np.delete(table.values[of_row], column))
            )
            for of_row, (of_group, of_name) in enumerate(table.names)
            if of_group == part and of_row != row
        ]
        # What changed the other way, by little, or is not known of the others, explains nothing.
        parts = [each for each in found if (each.value - each.others) / change >= _EXPLAINS]
        if parts:
            most.append(max(parts, key=lambda each: abs(each.value - each.others)))
    return OddRank(table.ranks[column], table.kind, table.unit, len(table.ranks), total, most)
