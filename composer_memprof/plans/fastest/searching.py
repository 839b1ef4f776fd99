"""Searches the fastest config that fits, by trials on the simulated GPU: each shows the memory and times a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from composer_memprof.plans.fastest.progress import progress_line
from composer_memprof.plans.fastest.result import Attempt, Fastest
from composer_memprof.plans.fastest.search import Candidate, Dimension, Search, Tried
from composer_memprof.plans.fastest.settings import Setting, microbatches, settings_of
from composer_memprof.plans.trial import Outcome, Trial
from composer_memprof.simulation.verdict import fits

#: How many of the fastest configs are shown.
_BEST = 3


def fastest(
    config: Mapping[str, Any],
    base: Trial,
    outcome: Outcome,
    run: Callable[[Trial], Outcome],
    available: int,
    report: Callable[[str], None] = lambda line: None,
) -> Fastest:
    """The fastest configs that fit. The batch of a step stays what it is in the config.

    See :class:`composer_memprof.plans.fastest.search.Search` for what is assumed. A step of more than three microbatches
    is timed with two and with three of them: each further one takes as long as the third one.

    Args:
        config: as loaded.
        base: the config's own trial.
        outcome: of it, with FLOPs counted.
        run: runs a trial.
        available: bytes that torch's allocator can have.
        report: called before each trial with a line that shows how far the search is.
    """
    began = time.monotonic()
    settings = settings_of(config, base, outcome)
    attempts: dict[Candidate, Attempt] = {}

    def attempted(candidate: Candidate) -> Tried:
        trial = trial_of(base, settings, candidate)
        found = run(trial)
        attempt = attempts[candidate] = _attempt(base, settings, candidate, found, available)
        rate = None if attempt.time is None else 1 / attempt.time.seconds_per_sample
        return Tried(candidate, bool(found.out_of_memory), rate)

    def show(candidate: Candidate, decided: float) -> None:
        best = [attempts[each.candidate] for each in search.best(1)]
        report(progress_line(decided, len(attempts), _name(settings, candidate), best[0] if best else None))

    search = Search(
        list(microbatches(outcome.batch_samples)),
        [Dimension(len(each.choices), each.ordered, each.price) for each in settings],
        attempted,
        show,
    )
    search.run()
    return Fastest(
        batch_samples=outcome.batch_samples,
        candidates=search.candidates,
        tried=list(attempts.values()),
        best=[attempts[each.candidate] for each in search.best(_BEST)],
        seconds=time.monotonic() - began,
    )


def trial_of(base: Trial, settings: Sequence[Setting], candidate: Candidate) -> Trial:
    """The trial of a candidate."""
    overrides = (*base.overrides, f'device_train_microbatch_size={candidate.microbatch}')
    trial = replace(base, overrides=overrides, few_microbatches=True, extends_time=True, counts_flops=False)
    for setting, choice in zip(settings, candidate.choices, strict=True):
        trial = setting.choices[choice].apply(trial)
    return trial


def _attempt(
    base: Trial, settings: Sequence[Setting], candidate: Candidate, outcome: Outcome, available: int
) -> Attempt:
    verdict = outcome.verdict(available)
    untimed = '' if outcome.time is not None or not outcome.fits else 'it could not be timed'
    chosen = [setting.choices[choice] for setting, choice in zip(settings, candidate.choices, strict=True)]
    return Attempt(
        name=_name(settings, candidate),
        microbatch=candidate.microbatch,
        config=as_yaml(trial_of(base, settings, candidate).overrides[len(base.overrides) :]),
        in_code=_in_code([choice.in_code for choice in chosen if choice.in_code]),
        fits=fits(verdict),
        verdict=verdict,
        error=outcome.error or untimed,
        allocated=outcome.allocated,
        reserved=outcome.reserved,
        time=outcome.time if outcome.fits else None,
        seconds=outcome.seconds,
    )


def _in_code(lines: Sequence[str]) -> list[str]:
    """Each once. A mark on every second block is meant for offload too, which asks for it on each."""
    chosen = next((line for line in lines if 'every second' in line), None)
    mark = chosen.partition(' = ')[0] if chosen else None
    return list(dict.fromkeys(line for line in lines if line == chosen or line.partition(' = ')[0] != mark))


def _name(settings: Sequence[Setting], candidate: Candidate) -> str:
    chosen = [setting.choices[choice].name for setting, choice in zip(settings, candidate.choices, strict=True)]
    return ', '.join([f'microbatch {candidate.microbatch}', *filter(None, chosen)])


def as_yaml(overrides: Sequence[str]) -> str:
    """``key=value`` settings as YAML.

    >>> print(as_yaml(['a.b=true', 'a.c=2']), end='')
    a:
      b: true
      c: 2
    """
    values: dict[str, Any] = {}
    for override in overrides:
        key, _, value = override.partition('=')
        *parents, name = key.split('.')
        into = values
        for parent in parents:
            into = into.setdefault(parent, {})
        into[name] = yaml.safe_load(value)
    return yaml.safe_dump(values, sort_keys=False)
