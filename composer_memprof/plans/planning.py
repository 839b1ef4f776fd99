"""The whole plan of a config: the verdict, the largest microbatch, what to change, and a grid of variations."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

from composer_memprof.config import load
from composer_memprof.plans.changes import Change, Price, changes_of, not_tried, of_microbatch
from composer_memprof.plans.combining import combination
from composer_memprof.plans.costs import costs_in_words, costs_of
from composer_memprof.plans.fastest.searching import fastest
from composer_memprof.plans.forking import outcome_of
from composer_memprof.plans.result import Plan, Row, available
from composer_memprof.plans.search import Largest, largest_microbatch
from composer_memprof.plans.trial import Outcome, Trial
from composer_memprof.simulated_gpu.this_process import figures
from composer_memprof.simulation.verdict import fits, torch_version


def plan(
    config: str,
    base: Trial,
    device: Mapping[str, Any],
    *,
    changes: bool = True,
    advised: Optional[Collection[str]] = None,
    vary: Sequence[tuple[str, Sequence[str]]] = (),
    searches_fastest: bool = False,
    report: Callable[[str], None] = lambda what: None,
) -> Plan:
    """Try a config, then its changes and variations.

    Args:
        config: a file, or the name of a config that ships.
        base: the config's own trial.
        device: ``gpu``, ``total`` and ``outside`` of the plan.
        changes: search the largest microbatch and try changes.
        advised: if the config fits, try only the changes that a report advises by these names, and search nothing.
        vary: keys and the values that each takes.
        searches_fastest: search the fastest config that fits.
        report: called with what is tried next, in a line.

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
    own = replace(base, counts_flops=changes or searches_fastest)
    real = outcome_of(config, own)
    outcome = real
    if real.out_of_memory:
        outcome = outcome_of(config, replace(own, without_limit=True))
    trials = _Trials(config, base, outcome, report)
    largest, rows, together = None, [], None
    if changes and not real.error:
        offered = list(changes_of(loaded, base, outcome, int(figures()['major'])))
        if advised is not None and real.fits:
            offered = [change for change in offered if change.advised_as in advised]
        else:
            report('the largest microbatch')
            largest = trials.largest_microbatch(loaded, [], real.microbatch, fits_at_start=real.fits)
        if largest is not None and not real.fits and largest.samples and 2 * largest.samples < outcome.microbatch:
            offered.append(of_microbatch('the largest microbatch that fits', largest.samples))
        tried = [(change, trials.row([change])) for change in offered]
        rows = sorted((row for _, row in tried), key=lambda row: -row.saved)
        if not real.fits and not any(row.outcome.fits for row in rows):
            together = trials.row(_together(tried, loaded, outcome, trials))
    grid = [
        trials.row_of(' '.join(overrides), replace(base, overrides=(*base.overrides, *overrides)))
        for overrides in variations
        if overrides
    ]
    room = available(device['total'], device['outside'])
    found = None
    if searches_fastest and not real.error:
        found = fastest(loaded, base, outcome, lambda trial: outcome_of(config, trial), room, report)
    verdict = real.verdict(room)
    return Plan(
        **device,
        ranks=base.ranks,
        ranks_per_node=base.ranks // base.nodes,
        torch=torch_version(),
        outcome=outcome,
        fits=fits(verdict),
        verdict=verdict,
        out_of_memory=real.out_of_memory,
        largest_microbatch=largest,
        changes=rows,
        combination=together,
        not_tried=not_tried(loaded, base) if rows else [],
        grid=grid,
        fastest=found,
        with_evaluation=base.with_evaluation,
    )


def _together(
    tried: Sequence[tuple[Change, Row]], config: Mapping[str, Any], outcome: Outcome, trials: _Trials
) -> list[Change]:
    """The changes to make together."""
    usable = [
        change for change, row in tried if change.price not in (None, Price.SMALL_KERNELS) and not row.outcome.error
    ]
    one_sample = of_microbatch('one sample in a microbatch', 1)
    if outcome.microbatch > 1:
        usable.append(one_sample)
    found = combination(sorted(usable, key=lambda change: change.price or 0), trials.needs)
    if one_sample not in found or trials.needs(found):
        return found
    others = [change for change in found if change is not one_sample]
    samples = trials.largest_microbatch(config, others, 1).samples
    return [*others, of_microbatch(f'{samples} samples in a microbatch', samples) if samples > 1 else one_sample]


class _Trials:
    """Runs the trials of changes, and compares them with the config as it is."""

    def __init__(self, config: str, base: Trial, outcome: Outcome, report: Callable[[str], None]) -> None:
        self._config = config
        self._base = base
        self._outcome = outcome
        self._report = report

    def row(self, changes: Sequence[Change]) -> Row:
        """The changes together."""
        name = ' + '.join(change.name for change in changes)
        how = '; '.join(change.how for change in changes)
        cost = ', '.join(dict.fromkeys(change.cost for change in changes if change.cost))
        row = self.row_of(name, self._applied(changes), how, cost)
        return replace(row, advised_as=changes[0].advised_as) if len(changes) == 1 else row

    def row_of(self, name: str, trial: Trial, how: str = '', cost: str = '') -> Row:
        self._report(name)
        found = outcome_of(self._config, trial)
        if found.out_of_memory:
            unlimited = outcome_of(self._config, replace(trial, without_limit=True))
            found = replace(unlimited, out_of_memory=found.out_of_memory)
        if found.limited_by_batch and 'device_train_microbatch_size=' in name:  # these figures are of another size
            found = Outcome(error=found.limited_by_batch)
        base = self._outcome
        costs = costs_of(base, found)
        words = [] if found.error else costs_in_words(costs, base)
        return Row(name, how, ', '.join(filter(None, [cost, *words])), base.allocated - found.allocated, costs, found)

    def needs(self, changes: Sequence[Change]) -> int:
        """The bytes that the changes together take of the device; 0 if they fit."""
        self._report(' + '.join(change.name for change in changes))
        trial = self._applied(changes)
        found = self._outcome_in_search(trial)
        if found.fits:
            return 0
        return sys.maxsize if found.error else self._outcome_in_search(replace(trial, without_limit=True)).reserved

    def largest_microbatch(
        self, config: Mapping[str, Any], changes: Sequence[Change], start: int, *, fits_at_start: bool = False
    ) -> Largest:
        """The largest microbatch that fits with the changes."""
        return largest_microbatch(config, self._applied(changes), start, self._outcome_in_search, fits_at_start)

    def _outcome_in_search(self, trial: Trial) -> Outcome:
        """Of a trial that is one of many."""
        return outcome_of(self._config, replace(trial, counts_flops=False, few_microbatches=True))

    def _applied(self, changes: Sequence[Change]) -> Trial:
        trial = self._base
        for change in changes:
            trial = change.apply(trial)
        return trial
