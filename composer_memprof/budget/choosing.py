"""The runs that a command line means: all of a budget, one of its runs, or one that is new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from composer_memprof.budget.file import BudgetError, read_budget
from composer_memprof.budget.runs import OF_DEVICES, Run, run_of, usual_name
from composer_memprof.messages import allowed_are

_HOW = 'make one with: composer-memprof check --update CONFIG, or composer-memprof check --update -- COMMAND'


def chosen(budget: Path, name: Optional[str], settings: Mapping[str, Any], new: bool) -> list[Run]:
    """The runs to check.

    Args:
        name: of the one that is meant; None for that of the config or command, or for all where there is neither.
        settings: those given, by the budget's keys.
        new: whether a run that the budget does not have is meant to be added.

    Raises:
        BudgetError: if there is no such run, or the settings are not those of the budget.
    """
    given = _given(name, settings)
    if not budget.exists():
        if given is not None and new:
            return [given]
        raise BudgetError(f'there is no {budget}; {_HOW}')
    runs = read_budget(budget)
    if given is None and name is None:
        return list(runs.values())
    known = runs.get(name or (given.name if given else ''))
    if known is not None:
        if given is not None:
            _check_same(budget, known, given, settings)
        return [known]
    if given is None or not new:
        wanted = name or (given.name if given else '')
        more = '; --update adds it' if given else ''
        raise BudgetError(f'{budget}: there is no run {wanted!r}; {allowed_are(list(runs), wanted)}{more}')
    return [given]


def _given(name: Optional[str], settings: Mapping[str, Any]) -> Optional[Run]:
    if 'config' not in settings and 'command' not in settings:
        if settings:
            key = next(iter(settings)).replace('_', '-')
            raise BudgetError(
                f'--{key} is for a run that is given as CONFIG or -- COMMAND; others have theirs in the budget'
            )
        return None
    try:
        run = run_of('', settings)
        return replace(run, name=name or usual_name(run.config, run.command))
    except ValueError as error:
        raise BudgetError(str(error)) from None


def _check_same(budget: Path, known: Run, given: Run, settings: Mapping[str, Any]) -> None:
    """What is given must be what the budget has; what is not given, the budget says."""
    ours, theirs = known.setup(), given.setup()
    for key in dict.fromkeys('gpu' if key in OF_DEVICES else key for key in settings):
        if ours.get(key) != theirs.get(key):
            raise BudgetError(
                f'{budget}: runs.{known.name} has {key} {ours.get(key, "unset")}, not {theirs.get(key, "unset")}; change it '
                'there, or give another --name'
            )
