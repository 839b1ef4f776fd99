"""The ``composer-memprof`` command."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import io
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import typer
from rich.console import Console

from composer_memprof.messages import MemprofWarning

if TYPE_CHECKING:
    from composer_memprof.runner import Run

app = typer.Typer(
    help='Memory and speed profiling for training with MosaicML Composer.',
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _settings() -> None:
    """Memory and speed profiling for training with MosaicML Composer."""


@app.command(context_settings={'allow_interspersed_args': True})
def train(
    config: Path = typer.Argument(..., help='a YAML run config', metavar='CONFIG.yaml'),
    overrides: Optional[list[str]] = typer.Argument(None, help='settings to change', metavar='[key=value ...]'),
    as_json: bool = typer.Option(False, '--json', help='list what the run left as JSON'),
) -> None:
    """Train as a YAML config says, and list what was recorded."""
    # Heard once a run at best, and of no use to anyone here: set before torch is imported.
    os.environ.setdefault('KINETO_LOG_LEVEL', '99')
    os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')
    _show_own_warnings_plainly()
    from composer_memprof import config as configs
    from composer_memprof.runner import Run

    sys.path.insert(0, os.getcwd())  # where the user's own builders are
    ready: list[Run] = []
    # However the training ends. Exit handlers run in reverse order: Composer's, which closes the callbacks, goes first.
    tell = atexit.register(_tell_of, ready, as_json)
    try:
        ready.append(Run(configs.load(config, overrides or [])))
        ready[0].train()
    except configs.ConfigError as error:
        _say(str(error))
        raise typer.Exit(2) from None
    atexit.unregister(tell)
    tell(ready, as_json)


def _tell_of(ready: list[Run], as_json: bool) -> None:
    """Say, on the first rank, what a run left behind; nothing of one that was never made."""
    from composer.utils import dist

    from composer_memprof.report.text.run_table import next_command, page_to_open, run_table

    if not ready or dist.get_global_rank() != 0:
        return
    result = ready[0].result()
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(result), default=str))
        return
    Console(highlight=False).print(run_table(result))
    command = next_command(result.artifacts)
    if command is not None:
        typer.echo(f'Next, try: {command}')  # in one piece, to be copied
    page = page_to_open(result.artifacts)
    if page is not None:
        typer.echo(f'or open in a browser: {page}')


@app.command()
def push(
    folder: Path = typer.Argument(..., help='searched for manifests, at any depth', metavar='RUN_FOLDER'),
    as_json: bool = typer.Option(False, '--json', help='report as JSON, one object a file'),
) -> None:
    """Upload what the manifests say was not."""
    from composer_memprof.artifacts import push as pushing

    if not folder.is_dir():
        _say(f'RUN_FOLDER={str(folder)!r} is no folder')
        raise typer.Exit(2)

    def report(pushed: pushing.Pushed) -> None:
        if as_json:
            typer.echo(json.dumps(dataclasses.asdict(pushed), default=str))
        elif pushed.error is None:
            typer.echo(f'uploaded {str(pushed.path)!r} to {pushed.remote!r}')
        else:
            _say(f'{str(pushed.path)!r} was not uploaded to {pushed.remote!r}: {pushed.error}')

    results = pushing.push(folder, report=report)
    if not results and not as_json:
        typer.echo(f'nothing to upload under {folder}')
    if any(pushed.error is not None for pushed in results):
        raise typer.Exit(1)


@app.command()
def inspect(
    snapshot: Path = typer.Argument(
        ...,
        help="a memory snapshot, gzipped or not; of a run's folder, that of its failure, else the newest",
        metavar='SNAPSHOT',
    ),
    as_json: bool = typer.Option(False, '--json', help='print as JSON'),
) -> None:
    """Say what filled the memory at its peak. Runs nothing that is in the file."""
    from composer_memprof.analysis.memory.snapshot_report import report_on
    from composer_memprof.analysis.run import snapshots_by_rank
    from composer_memprof.analysis.snapshot.loading import load_snapshot
    from composer_memprof.report.text.snapshot_tables import report_text

    with _refusing_in_one_line(snapshot):
        folder, snapshot = snapshot, next(iter(snapshots_by_rank(snapshot).values()))
        answer = report_on(load_snapshot(snapshot, limit_memory=True))
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(answer)))
        return
    if folder != snapshot:
        typer.echo(f'{snapshot}')
    if answer.devices:
        Console(highlight=False).print(report_text(answer))
    else:
        typer.echo(f'{snapshot}: no allocation was recorded')


@app.command()
def diff(
    before: Path = typer.Argument(..., help="a memory snapshot, or a run's folder", metavar='A'),
    after: Path = typer.Argument(..., help='another', metavar='B'),
    as_json: bool = typer.Option(False, '--json', help='print as JSON'),
) -> None:
    """Say what grew from A to B at the peak. Of a run, the newest snapshot of each rank counts."""
    from composer_memprof.analysis.memory.diff import diff as compare
    from composer_memprof.report.text.snapshot_tables import diff_text

    with _refusing_in_one_line(before, after):
        found = compare(before, after, limit_memory=True)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found)))
    else:
        Console(highlight=False).print(diff_text(found))


@contextlib.contextmanager
def _refusing_in_one_line(*paths: Path) -> Iterator[None]:
    """Around the reading of files that are not trusted."""
    from composer_memprof.analysis.snapshot.limits import run_in_child_with_time_limit, seconds_to_read
    from composer_memprof.analysis.snapshot.loading import SnapshotError

    try:
        run_in_child_with_time_limit(seconds_to_read(paths))
    except TimeoutError as error:
        _say(f'{" and ".join(map(str, paths))}: {error}; a snapshot of this size takes a fraction of that')
        raise typer.Exit(1) from None

    try:
        # Where memory ends in the middle of a buffer, Python itself writes a second line.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    except OSError as error:
        _say(f'{str(error.filename or "the file")!r} can not be read: {error.strerror or error}')
        raise typer.Exit(2) from None
    except SnapshotError as error:
        _say(str(error))
        raise typer.Exit(1) from None


def _show_own_warnings_plainly() -> None:
    """A warning of ours is one line for a person, without the place in the code that it came from."""
    show = warnings.showwarning

    def plainly(message: Any, category: type[Warning], *rest: Any, **named: Any) -> None:
        if issubclass(category, MemprofWarning):
            sys.stderr.write(f'{message}\n')
        else:
            show(message, category, *rest, **named)

    warnings.showwarning = plainly


def _say(message: str) -> None:
    sys.stderr.write(f'composer-memprof: {message}\n')


def main() -> None:
    app()


if __name__ == '__main__':
    main()
