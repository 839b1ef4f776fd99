"""The whole plan of a config: the verdict, the largest microbatch, what to change, and a grid of variations."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

from composer_memprof.config import load
from composer_memprof.plan.changes import changes_of
from composer_memprof.plan.forking import outcome_of
from composer_memprof.plan.search import Largest, largest_microbatch
from composer_memprof.plan.trial import Outcome, Trial


@dataclasses.dataclass(frozen=True)
class Row:
    """A change or a variation and its outcome. ``saved`` is the peak's difference in bytes, less is above 0."""

    name: str
    how: str
    cost: str
    saved: int
    outcome: Outcome


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the trials of a config came to. Sizes are in bytes.

    Attributes:
        gpu: the key of the simulated device.
        total: the device's memory.
        outside: allowances for what lies outside of torch's allocator, by what they are for.
        ranks: how many processes the simulated one stands among.
        outcome: of the config as it is; without the limit of the device's memory if it did not fit.
        fits: whether it fits.
        out_of_memory: torch's message if it does not.
        largest_microbatch: that fits, and what else limits it; None if it was not searched.
        changes: each with its own trial.
        grid: the variations that were asked for.
    """

    gpu: str
    total: int
    outside: dict[str, int]
    ranks: int
    outcome: Outcome
    fits: bool
    out_of_memory: str
    largest_microbatch: Optional[Largest]
    changes: list[Row]
    grid: list[Row]

    def as_dict(self) -> dict[str, Any]:
        """As ``--json`` prints it: with ``fits`` for each outcome."""
        values = dataclasses.asdict(self)
        for row, values_of_row in zip([*self.changes, *self.grid], [*values['changes'], *values['grid']], strict=True):
            values_of_row['outcome']['fits'] = row.outcome.fits
        return values


def plan(
    config: str,
    base: Trial,
    device: Mapping[str, Any],
    *,
    changes: bool = True,
    vary: Sequence[tuple[str, Sequence[str]]] = (),
    report: Callable[[str], None] = lambda what: None,
) -> Plan:
    """Try a config, then its changes and variations.

    Args:
        config: a file, or the name of a config that ships.
        base: the config's own trial.
        device: ``gpu``, ``total`` and ``outside`` of the plan.
        changes: search the largest microbatch and try changes.
        vary: keys and the values that each takes.
        report: called with what is tried next.

    Raises:
        ConfigError: for a user's mistake in the config.
    """
    loaded = load(config, base.overrides)
    variations = [
        tuple(f'{key}={value}' for (key, _), value in zip(vary, values, strict=True))
        for values in itertools.product(*(values for _, values in vary))
    ]
    for overrides in variations:
        load(config, (*base.overrides, *overrides))
    report('the config as it is')
    real = outcome_of(config, base)
    outcome = real
    if real.out_of_memory:
        outcome = outcome_of(config, replace(base, without_limit=True))

    def row(name: str, how: str, cost: str, trial: Trial) -> Row:
        report(name)
        found = outcome_of(config, trial)
        if found.out_of_memory:
            peak = outcome_of(config, replace(trial, without_limit=True, counts_flops=False))
            found = replace(peak, out_of_memory=found.out_of_memory, flops=found.flops)
        return Row(name, how, cost or _recomputed(found), outcome.allocated - found.allocated, found)

    found = []
    largest = None
    if changes and not real.error:
        report('the largest microbatch')
        largest = largest_microbatch(loaded, base, real.microbatch, lambda trial: outcome_of(config, trial))
        found = [row(each.name, each.how, each.cost, each.trial) for each in changes_of(loaded, base, outcome)]
        found.sort(key=lambda row: -row.saved)
    grid = [
        row(' '.join(overrides), '', '', replace(base, overrides=(*base.overrides, *overrides)))
        for overrides in variations
        if overrides
    ]
    return Plan(
        **device,
        ranks=base.ranks,
        outcome=outcome,
        fits=real.fits,
        out_of_memory=real.out_of_memory,
        largest_microbatch=largest,
        changes=found,
        grid=grid,
    )


def _recomputed(outcome: Outcome) -> str:
    if not outcome.flops or not outcome.recomputed_flops:
        return ''
    return f'{outcome.recomputed_flops / outcome.flops:+.0%} FLOPs, recomputed'
