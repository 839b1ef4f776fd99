"""Training from a YAML config."""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Optional

import typer

from composer_memprof.examples.configs import shipped_configs
from composer_memprof.messages import printable
from composer_memprof.terminal import say, show, show_own_warnings_plainly

if TYPE_CHECKING:
    from composer_memprof.runner import Run


def train(
    config: str = typer.Argument(
        ..., help=f'a YAML file, or a config that ships: {", ".join(shipped_configs())}', metavar='CONFIG'
    ),
    overrides: Optional[list[str]] = typer.Argument(
        None, help='settings to change; callbacks.NAME=null takes a callback out', metavar='key=value'
    ),
    with_report: bool = typer.Option(
        False, '--report', help='at the end, say what filled the memory, and write a page'
    ),
    as_json: bool = typer.Option(False, '--json', help='list the files of the run as JSON'),
) -> None:
    """Train from a YAML config and list the files it wrote.

    \b
    Examples:
      composer-memprof train quickstart max_duration=50ba
      composer-memprof train my.yaml run_name=wide \\
        model.d_model=320 callbacks.lr_monitor=null
    """
    # These messages appear at most once in a run and help nobody. Set before torch is imported.
    os.environ.setdefault('KINETO_LOG_LEVEL', '99')
    os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')
    show_own_warnings_plainly()
    from composer_memprof import config as configs
    from composer_memprof.runner import Run

    sys.path.insert(0, os.getcwd())  # for the user's own builders
    runs: list[Run] = []
    # Also after an error. Exit handlers run in reverse order: Composer's, which closes the callbacks, runs first.
    end = atexit.register(_end_run, runs, as_json, with_report)
    try:
        runs.append(Run(configs.load(config, overrides or [])))
        runs[0].train()
    except configs.ConfigError as error:
        say(str(error))
        raise typer.Exit(2) from None
    atexit.unregister(end)
    end(runs, as_json, with_report)


def _end_run(runs: list[Run], as_json: bool, with_report: bool) -> None:
    """Print, on the first rank, the result of the run, if it was built."""
    from composer.utils import dist

    from composer_memprof.report.text.terminal.run_table import next_command, page_to_open, run_table

    if not runs or dist.get_global_rank() != 0:
        return
    result = runs[0].result()
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(result), default=str))
        return
    show(run_table(result))
    command = next_command(result.artifacts)
    if command is not None:
        typer.echo(f'Next, try: {command}')  # on one line, to be copied
    folders = sorted({os.path.relpath(artifact.folder) for artifact in result.artifacts})
    if with_report and folders:
        typer.echo()
        # Not in this process, whose memory the training still fills.
        subprocess.run([sys.executable, '-m', 'composer_memprof', 'report', *folders], check=False)
        return
    page = page_to_open(result.artifacts)
    if page is not None:
        typer.echo(f'or open in a browser: {printable(str(page))}')
