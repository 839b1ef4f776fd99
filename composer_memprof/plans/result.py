"""What a plan came to, as plain data: its trials are another process's. Imports neither torch nor Composer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

from composer_memprof.plans.costs import Costs
from composer_memprof.plans.fastest.result import Fastest
from composer_memprof.plans.search import Largest
from composer_memprof.plans.trial import Outcome
from composer_memprof.simulation.verdict import fits


@dataclasses.dataclass(frozen=True)
class Row:
    """A change or a variation and its outcome.

    Attributes:
        name: what is changed, in a few words.
        how: what to write where.
        cost: what it costs beside memory, in words.
        saved: the peak's difference in bytes, less is above 0.
        costs: as measured.
        outcome: of its trial; without the limit of the device's memory if it did not fit.
        advised_as: what a report on a run calls the change, if it advises it.
    """

    name: str
    how: str
    cost: str
    saved: int
    costs: Costs
    outcome: Outcome
    advised_as: str = ''


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the trials of a config came to. Sizes are in bytes.

    Attributes:
        gpu: the key of the simulated device.
        total: the device's memory.
        outside: allowances for what lies outside of torch's allocator, by what they are for.
        ranks: how many processes the simulated one stands among.
        ranks_per_node: of these.
        torch: the version whose allocator ran.
        outcome: of the config as it is; without the limit of the device's memory if it did not fit.
        fits: whether it fits; None if it did not run.
        verdict: one of those in :mod:`composer_memprof.simulation.verdict`.
        out_of_memory: torch's message if it does not.
        largest_microbatch: that fits, and what else limits it; None if it was not searched.
        changes: each with its own trial.
        combination: the changes that fit together where none fits alone, or come closest if they do not either; None
            if one fits alone.
        not_tried: changes that can't be made, with the reason, one line each.
        grid: the variations that were asked for.
        fastest: the fastest configs that fit; None if they were not searched.
        with_evaluation: whether each trial evaluated and wrote checkpoints.
    """

    gpu: str
    total: int
    outside: dict[str, int]
    ranks: int
    ranks_per_node: int
    torch: str
    outcome: Outcome
    fits: Optional[bool]
    verdict: str
    out_of_memory: str
    largest_microbatch: Optional[Largest]
    changes: list[Row]
    combination: Optional[Row]
    not_tried: list[str]
    grid: list[Row]
    fastest: Optional[Fastest] = None
    with_evaluation: bool = False

    @property
    def available(self) -> int:
        """What torch's allocator can have of the device, in bytes."""
        return available(self.total, self.outside)

    def as_dict(self) -> dict[str, Any]:
        """As ``--json`` prints it: with ``fits`` and ``verdict`` for each row's outcome, and without its places."""
        values = dataclasses.asdict(self)
        together = [self.combination] if self.combination is not None else []
        values_together = [values['combination']] if together else []
        rows = (*self.changes, *together, *self.grid)
        for row, into in zip(rows, (*values['changes'], *values_together, *values['grid']), strict=True):
            verdict = row.outcome.verdict(self.available)
            into['outcome'] |= {'fits': fits(verdict), 'verdict': verdict}
            del into['outcome']['places']
        return values


def available(total: int, outside: Mapping[str, int]) -> int:
    """What torch's allocator can have of a device, in bytes.

    >>> available(100, {'context': 7, 'cuBLAS': 3})
    90
    """
    return total - sum(outside.values())
