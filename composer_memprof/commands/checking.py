"""The memory of runs held to a budget, on a GPU that is not there."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import typer
from typer.core import TyperCommand

from composer_memprof.commands.writing import refuse_unwritable
from composer_memprof.examples.configs import shipped_configs
from composer_memprof.messages import printable
from composer_memprof.terminal import say, show

if TYPE_CHECKING:
    from composer_memprof.budget.checking import Checked
    from composer_memprof.budget.runs import Run

_COMMAND = 'composer_memprof.command'


class CheckCommand(TyperCommand):
    """Tells the words after ``--``, which are a command, from a config and its overrides."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if '--' in args:
            place = args.index('--')
            args, ctx.meta[_COMMAND] = args[:place], args[place + 1 :]
        return super().parse_args(ctx, args)


def check(
    ctx: typer.Context,
    config: Optional[str] = typer.Argument(
        None,
        help=f'a YAML file, or a config that ships: {", ".join(shipped_configs())}; or a command after --',
        metavar='[CONFIG | -- COMMAND …]',
    ),
    overrides: Optional[list[str]] = typer.Argument(None, help='settings of the config to change', metavar='key=value'),
    name: Optional[str] = typer.Option(
        None, help='of the run in the budget. Default: of the config or script; without either, all runs', metavar='RUN'
    ),
    gpu: Optional[str] = typer.Option(None, help='the kind of GPU. Default: h100-80gb', metavar='NAME'),
    memory: Optional[str] = typer.Option(None, help='its memory, such as 24GB; without --gpu, of one made by hand'),
    compute_capability: Optional[str] = typer.Option(None, help='of one made by hand. Default: 9.0'),
    ranks: Optional[int] = typer.Option(None, min=1, help='how many GPUs it trains on'),
    ranks_per_node: Optional[int] = typer.Option(None, min=1, help='Default: 8, or all if they are fewer'),
    rank: Optional[int] = typer.Option(None, min=0, help='of a command: which of the ranks'),
    steps: Optional[int] = typer.Option(None, min=0, help='of a command: optimizer steps; 0: to its end. Default: 3'),
    with_evaluation: Optional[bool] = typer.Option(
        None, '--eval', help='of a command: go on until one evaluation and one checkpoint were made'
    ),
    devices: Optional[int] = typer.Option(None, min=1, max=64, help='of a command: GPUs of the machine'),
    kept: Optional[list[str]] = typer.Option(
        None, help='of a command: which part of its elements a mask keeps', metavar='PART | FILE:LINE=PART'
    ),
    values: Optional[bool] = typer.Option(
        None, '--values/--no-values', help='of a command: whether small values are computed'
    ),
    time_limit: Optional[float] = typer.Option(None, min=0, help='of a command: seconds'),
    update: bool = typer.Option(False, '--update', help='record what the runs come to now, and say what changed'),
    budget: Path = typer.Option('memory_budget.yaml', help='the file of the budget', metavar='FILE'),
    junit: Optional[Path] = typer.Option(None, help='write the result as XML for a CI server', metavar='FILE'),
    markdown: bool = typer.Option(False, '--markdown', help='print as Markdown, for a pull request'),
    as_json: bool = typer.Option(False, '--json', help='print as JSON'),
) -> None:
    """Hold the memory of runs to a budget, on a GPU that is not there. Needs no GPU.

    The budget is memory_budget.yaml, and what the runs came to when they were recorded lies beside it. Exits with 0
    within the budget, with 4 above it, and says first which line of the code holds more. It exits with 3 if a run does
    not fit on its GPU, with 2 if nothing could be compared, and with a command's own code if that failed by itself.

    \b
    Examples:
      composer-memprof check --update --gpu t4 quickstart
      composer-memprof check --update -- python train.py
      composer-memprof check
      composer-memprof check --markdown --junit memory.xml
    """
    from composer_memprof.budget.choosing import chosen
    from composer_memprof.budget.file import BudgetError
    from composer_memprof.budget.recorded import recorded_path
    from composer_memprof.simulated_gpu.building import CannotSimulateError

    command = ctx.meta.get(_COMMAND)
    if as_json and markdown:
        say('--json and --markdown cannot both be printed')
        raise typer.Exit(2)
    given: dict[str, Any] = {
        'config': config,
        'overrides': overrides or None,
        'command': command and shlex.join(command),
        'gpu': gpu,
        'memory': memory,
        'compute_capability': compute_capability,
        'ranks': ranks,
        'ranks_per_node': ranks_per_node,
        'rank': rank,
        'steps': steps,
        'eval': with_evaluation,
        'devices': devices,
        'kept': kept or None,
        'values': values,
        'time_limit': time_limit,
    }
    settings = {key: value for key, value in given.items() if value is not None}
    if command is not None and (config is not None or not command):
        say('check takes either CONFIG or -- COMMAND')
        raise typer.Exit(2)
    refuse_unwritable('--junit', junit)
    for path in (budget, recorded_path(budget)) if update else ():
        refuse_unwritable('--budget', path)
    try:
        runs = chosen(budget, name, settings, update)
        checked = _update(budget, runs, settings) if update else _check(budget, runs)
    except BudgetError as error:
        say(str(error))
        raise typer.Exit(2) from None
    except (CannotSimulateError, OSError) as error:
        say(str(error))
        raise typer.Exit(1) from None
    _show(budget, checked, junit, markdown, as_json)


def _check(budget: Path, runs: list[Run]) -> list[Checked]:
    from composer_memprof.budget.checking import held
    from composer_memprof.budget.recorded import read_recorded
    from composer_memprof.budget.running import run
    from composer_memprof.simulation.verdict import torch_version

    recorded = read_recorded(budget)
    return [held(each, run(each), recorded, torch_version()) for each in runs]


def _update(budget: Path, runs: list[Run], settings: dict[str, Any]) -> list[Checked]:
    """Record the runs, and say what changed."""
    from composer_memprof.budget.updating import record

    updated = record(budget, runs, settings)
    for line in updated.lines:
        say(line)
    return updated.checked


def _show(budget: Path, checked: list[Checked], junit: Optional[Path], markdown: bool, as_json: bool) -> None:
    from composer_memprof.budget.checking import exit_code
    from composer_memprof.budget.outputs import check_dict, check_markdown, check_text, headlines, write_junit
    from composer_memprof.simulation.verdict import torch_version

    if as_json:
        typer.echo(json.dumps(check_dict(checked, budget, torch_version())))
    elif markdown:
        typer.echo(check_markdown(checked))
    else:
        typer.echo('\n'.join(headlines(checked)))
        show(check_text(checked))
    if junit is not None:
        try:
            write_junit(checked, junit)
        except OSError as error:
            say(f'--junit={printable(str(junit))} cannot be written: {error.strerror}')
            raise typer.Exit(1) from None
    raise typer.Exit(exit_code(checked))
