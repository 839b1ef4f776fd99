"""Records what runs come to now, as the figures that later ones are held to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_memprof.budget.checking import Checked, held
from composer_memprof.budget.figures import grown
from composer_memprof.budget.file import add_run, read_budget
from composer_memprof.budget.measures import MEASURES
from composer_memprof.budget.recorded import read_recorded, recorded_path, write_recorded
from composer_memprof.budget.running import run
from composer_memprof.budget.runs import Run
from composer_memprof.budget.sentences import recorded_lines
from composer_memprof.simulation.verdict import DOES_NOT_FIT, torch_version


@dataclass(frozen=True)
class Updated:
    """What was recorded, in lines, and each run held to the new figures."""

    lines: list[str]
    checked: list[Checked]


def record(budget: Path, runs: Sequence[Run], settings: Mapping[str, Any]) -> Updated:
    """Run them, and record those that fit; a run that the budget does not have is added to it.

    Args:
        settings: of the run that may be new.

    Raises:
        BudgetError: if a file can't be read, or the run can't be added.
    """
    torch = torch_version()
    recorded = read_recorded(budget)
    known = read_budget(budget) if budget.exists() else {}
    lines: list[str] = []
    checked: list[Checked] = []
    for what in runs:
        ran = run(what)
        if ran.figures is not None and ran.verdict != DOES_NOT_FIT:
            before = recorded.of(what.name, torch)
            changes = [] if before is None else grown(before.places, ran.figures.places)
            lines += recorded_lines(what.name, before, ran.figures, changes)
            if what.name not in known:
                measured = [each for each in MEASURES if getattr(ran.figures, each.key) is not None]
                add_run(budget, what.name, settings, measured)
            recorded = recorded.with_figures(what.name, torch, ran.figures)
            write_recorded(budget, recorded)
        checked.append(held(what, ran, recorded, torch))
    if lines:
        lines.append(f'recorded with torch {torch} in {recorded_path(budget)}; commit it with {budget}')
    return Updated(lines, checked)
