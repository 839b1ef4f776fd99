"""Runs a budget's run on a simulated GPU, as ``plan`` runs a config and ``simulate`` a command, and takes its figures."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Optional

from composer_memprof.analysis.memory.findings.peak import Peak
from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.analysis.typed_json import from_plain
from composer_memprof.artifacts.writing.temporary_folders import temporary_folder
from composer_memprof.budget.figures import Figures, PlaceFigure, place_figures
from composer_memprof.budget.runs import Run
from composer_memprof.plans.starting import NoPlanError, plan_of_process, planning_process
from composer_memprof.plans.trial import Outcome
from composer_memprof.simulation.guesses import kept_parts
from composer_memprof.simulation.result import SimulationResult
from composer_memprof.simulation.run import Simulation, as_one_rank, simulate
from composer_memprof.simulation.step_time import StepTime
from composer_memprof.simulation.verdict import DOES_NOT_FIT, EXIT_CODES, NOT_SEEN

#: Lines of a failed command's output that are shown.
_TAIL = 20


@dataclass(frozen=True)
class Ran:
    """The end of a run.

    Args:
        verdict (str): one of those in :mod:`composer_memprof.simulation.verdict`.
        code (int): the exit code of ``plan`` or ``simulate``.
        figures (Figures, optional): None if nothing was seen.
        reason (str): why it was not seen or does not fit, in one line.
        output (str): the end of a failed command's own output.
    """

    verdict: str
    code: int
    figures: Optional[Figures]
    reason: str = ''
    output: str = ''


def run(what: Run) -> Ran:
    """Run it; what it prints is not shown.

    Raises:
        CannotSimulateError: where no GPU can be simulated.
        ValueError: if settings of the run do not go together.
    """
    return _run_config(what) if what.config else _run_command(what)


def _run_config(what: Run) -> Ran:
    command, environment = planning_process(
        what.config, what.overrides, what.device, what.ranks or 1, what.ranks_per_node, changes=False
    )
    try:
        plan, code = plan_of_process(command, environment)
    except NoPlanError as error:
        lines = error.said or [f'it ended with code {error.code}']
        return Ran(NOT_SEEN, error.code or 1, None, lines[-1].removeprefix('composer-memprof: '))
    outcome = from_plain(Outcome, plan['outcome'])
    if outcome.error:
        return Ran(NOT_SEEN, code, None, outcome.error)
    figures = Figures(
        setup=what.setup(),
        allocated=outcome.allocated,
        reserved=outcome.reserved,
        batch=outcome.batch,
        phase=outcome.phase,
        places=place_figures(outcome.places),
        step_seconds=_step_seconds(outcome.time),
    )
    return Ran(plan['verdict'], code, figures, plan['out_of_memory'])


def _run_command(what: Run) -> Ran:
    part, kept_at = kept_parts(what.kept, what.values)
    asked = Simulation(
        what.device,
        what.ranks,
        what.rank,
        what.ranks_per_node,
        what.steps,
        what.eval,
        what.time_limit,
        part,
        what.devices,
        keeps_recording=True,
        values=what.values,
        kept_at=kept_at,
    )
    command, asked = as_one_rank(what.command, asked)
    with temporary_folder('check') as folder, (folder / 'output').open('w+b') as output:
        result = simulate(command, asked, folder / 'files', stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        figures = _figures_of(what, result)
        tail = _tail(output) if result.unseen else ''
    reason = result.unseen or next((each.out_of_memory for each in result.processes if each.out_of_memory), '')
    return Ran(result.verdict, result.code or EXIT_CODES[result.verdict], figures, reason, tail)


def _figures_of(what: Run, result: SimulationResult) -> Optional[Figures]:
    """Of the process that reserved most."""
    if not result.reserved or (result.unseen and result.verdict != DOES_NOT_FIT):
        return None
    process = result.processes[0]
    device = max(process.devices, key=lambda each: each.reserved)
    peak = None if process.snapshot is None else _peak(Path(process.snapshot), device.device)
    return Figures(
        setup=what.setup(),
        allocated=device.allocated,
        reserved=device.reserved,
        batch=None if peak is None else peak.batch,
        phase='' if peak is None else peak.phase,
        places=_places(peak),
        step_seconds=_step_seconds(process.time),
        growth=result.growth,
    )


def _step_seconds(time: Optional[StepTime]) -> Optional[float]:
    return None if time is None else time.step_seconds


def _peak(snapshot: Path, device: int) -> Optional[Peak]:
    reports: Sequence[Any] = report_on(load_snapshot(snapshot)).devices
    return next((each.peak for each in reports if each.device == device), None)


def _places(peak: Optional[Peak]) -> list[PlaceFigure]:
    return [] if peak is None else place_figures(peak.holders)


def _tail(output: IO[bytes]) -> str:
    output.seek(0)
    return '\n'.join(output.read().decode(errors='replace').splitlines()[-_TAIL:])
