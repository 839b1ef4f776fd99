"""Reports on whole runs, once or while they go on."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Optional

import typer

from composer_memprof.commands.devices import device_named
from composer_memprof.commands.reading import file_errors_in_one_line, on_this_disk
from composer_memprof.commands.writing import refuse_unwritable
from composer_memprof.messages import printable
from composer_memprof.schemas import versioned
from composer_memprof.terminal import say, show


def report(
    paths: list[str] = typer.Argument(
        ...,
        help="runs' folders, folders of memory snapshots, or snapshots; on this disk, or in a store, such as s3://…",
        metavar='PATH …',
    ),
    output: Optional[Path] = typer.Option(
        None, '-o', '--output', help="the page. Default: report.html in the run's folder", metavar='FILE'
    ),
    simulate: bool = typer.Option(
        False, help='try each change on a simulated GPU, which runs the code of the config (seconds to minutes)'
    ),
    config: Optional[Path] = typer.Option(
        None, help='the config to simulate. Default: the one that train kept', metavar='FILE'
    ),
    gpu: Optional[str] = typer.Option(None, help='the GPU to simulate. Default: that of the run', metavar='NAME'),
    trust: bool = typer.Option(
        False, '--trust', help='with --simulate: run the code that the config in the folder names, without asking'
    ),
    as_json: bool = typer.Option(False, '--json', help='print as JSON, and write a page only with --output'),
) -> None:
    """Say what fills the memory of a run, which ranks differ, and what to change; and write a page about it.

    Of two runs it says first what changed from the first to the second.

    \b
    Examples:
      composer-memprof report runs/my-run
      composer-memprof report runs/my-run --simulate
      composer-memprof report s3://bucket/my-run -o x.html
      composer-memprof report runs/before runs/after
      composer-memprof report rank0.pickle rank1.pickle
    """
    from composer_memprof.analysis.run_report.files import files_to_fetch
    from composer_memprof.analysis.run_report.report import report_on_paths
    from composer_memprof.plans.advised import SECONDS, with_tried_advice
    from composer_memprof.report.html.run.page import write_run_page
    from composer_memprof.report.text.sentences.run_verdict import verdict_text
    from composer_memprof.report.text.sentences.run_verdict_json import report_dict
    from composer_memprof.simulation.replay import with_replayed_advice

    if not simulate and (config is not None or gpu is not None):
        say(f'{"--config" if config is not None else "--gpu"} needs --simulate')
        raise typer.Exit(2)
    device = None if gpu is None else device_named(gpu)
    refuse_unwritable('--output', output, 'choose another file with -o')
    if simulate and sys.stderr.isatty():
        say('simulating the changes, which may take minutes')
    with on_this_disk(paths, files_to_fetch) as runs:
        folders = [run.path for run in runs]

        def named(text: str) -> str:
            return functools.reduce(lambda text, run: run.named(text), runs, text)

        with file_errors_in_one_line(*folders, named=named, more_seconds=SECONDS if simulate else 0):
            found = with_replayed_advice(report_on_paths([(run.path, run.name) for run in runs], named))
            if simulate:
                found = with_tried_advice(found, config, device, agrees=lambda names: trust or _agrees(names))
            if as_json:
                typer.echo(json.dumps(versioned('report', report_dict(found))))
            else:
                show(verdict_text(found))
        if found.not_tried:
            say(f'nothing was simulated: {found.not_tried}')
        page = output or (None if as_json else _page_of(paths))
        if page is not None:
            try:
                write_run_page(found, page)
            except OSError as error:
                say(f'{str(page)!r} cannot be written: {error.strerror or error}; choose another file with -o')
                raise typer.Exit(2) from None
        if not as_json:
            out_of_memory = any(failure.oom is not None for failure in found.failures)
            typer.echo('\nstep by step: composer-memprof guide index' if out_of_memory else '')
            typer.echo(f'open in a browser: {printable(str(page))}')


def _agrees(names: list[str]) -> bool:
    """Asks on a terminal whether to run code that a run's folder names."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    shown = ', '.join(map(printable, names))
    return typer.confirm(f'The config in the folder of the run imports and calls {shown}. Run it?', err=True)


def _page_of(paths: list[str]) -> Path:
    """In the run's folder if there is one on this disk, else in the current folder."""
    return (Path(paths[0]) if len(paths) == 1 and Path(paths[0]).is_dir() else Path()) / 'report.html'


def watch(
    folder: Path = typer.Argument(..., help="a run's folder", metavar='RUN_FOLDER'),
    every: float = typer.Option(5.0, min=0.5, help='seconds between two looks'),
) -> None:
    """Show the verdict on a run while it goes on, from its files alone. Ends with the run, or with Ctrl-C.

    \b
    Example:
      composer-memprof watch runs/my-run
    """
    from composer_memprof.report.text.terminal.watching import watch as watch_run

    try:
        watch_run(folder, every)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
