"""Memory snapshots: inspected and compared."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import typer

from composer_memprof.commands.reading import file_errors_in_one_line, on_this_disk
from composer_memprof.commands.writing import refuse_unwritable
from composer_memprof.messages import printable
from composer_memprof.schemas import versioned
from composer_memprof.terminal import say, show

if TYPE_CHECKING:
    from composer_memprof.analysis.memory.blocks.time_span import TimeSpan
    from composer_memprof.analysis.run import RankSnapshot
    from composer_memprof.analysis.snapshot.model import Snapshot
    from composer_memprof.analysis.stored_runs import LocalRun


def inspect(
    snapshot: str = typer.Argument(
        ...,
        help="a memory snapshot, compressed or not; or a run's folder: the snapshot of its failure, else the newest; "
        "or MemProfiler's memory_stats.yaml; each on this disk, or in a store, such as s3://…",
        metavar='SNAPSHOT',
    ),
    rank: Optional[int] = typer.Option(
        None, min=0, help='of a run: this rank. Default: the first that failed, else the first'
    ),
    begin_ms: Optional[float] = typer.Option(
        None, '--from', help='look for the peak from here on, in ms after the first event', metavar='MS'
    ),
    end_ms: Optional[float] = typer.Option(None, '--to', help='and up to here', metavar='MS'),
    html: Optional[Path] = typer.Option(
        None, help='write the page of the snapshot, as a callback does, to this .html', metavar='FILE'
    ),
    as_json: bool = typer.Option(False, '--json', help='print as JSON'),
) -> None:
    """Show what filled the memory at its peak, or which function's calls raised it. Runs no code from the file.

    \b
    Examples:
      composer-memprof inspect runs/my-run
      composer-memprof inspect s3://bucket/my-run --rank 3
      composer-memprof inspect rank0.20.pickle --html x.html
      composer-memprof inspect rank0.20.pickle --from 5 --to 9
      composer-memprof inspect rank_0_memory_stats.yaml
    """
    from composer_memprof.analysis.function_growth import is_function_stats
    from composer_memprof.analysis.memory.blocks.time_span import TimeSpan
    from composer_memprof.analysis.run import snapshot_to_show

    try:
        span = None if begin_ms is None and end_ms is None else TimeSpan(begin_ms, end_ms)
    except ValueError as error:
        say(f'--from and --to: {error}')
        raise typer.Exit(2) from None
    _check_page(html)
    with on_this_disk([snapshot], lambda folder: [snapshot_to_show(folder, rank).path]) as (run,):
        if is_function_stats(run.path) and not run.path.is_dir():
            _inspect_functions(run, as_json)
        else:
            _inspect_snapshot(run, rank, span, html, as_json)


def _check_page(html: Optional[Path]) -> None:
    if html is not None and html.suffix not in ('.html', '.htm'):
        say(f'--html={str(html)!r} must end with .html')
        raise typer.Exit(2)
    refuse_unwritable('--html', html)


def _inspect_snapshot(
    run: LocalRun, rank: Optional[int], span: Optional[TimeSpan], html: Optional[Path], as_json: bool
) -> None:
    from composer_memprof.analysis.memory.snapshot_report import report_on
    from composer_memprof.analysis.run import snapshot_to_show
    from composer_memprof.analysis.snapshot.loading import load_snapshot
    from composer_memprof.report.text.terminal.inspection_json import inspection_dict
    from composer_memprof.report.text.terminal.snapshot_tables import chosen_text, report_text

    with file_errors_in_one_line(run.path, named=run.named):
        chosen = snapshot_to_show(run.path, rank)
        content = load_snapshot(chosen.path, limit_memory=True)
        report = report_on(content, span)
        if html is not None:
            _write_page(content, chosen, html)
    path = run.named(str(chosen.path))
    if as_json:
        typer.echo(json.dumps(versioned('inspect', inspection_dict(report, chosen, path, html))))
        return
    if chosen.rank is not None:
        typer.echo(printable(path))
        for line in chosen_text(chosen):
            typer.echo(line)
    if report.devices:
        show(report_text(report))
    else:
        typer.echo(f'{printable(path)}: no allocation was recorded')
    if html is not None:
        typer.echo(f'\nOpen in a browser: {printable(str(html))}')


def _write_page(content: Snapshot, chosen: RankSnapshot, html: Path) -> None:
    from composer_memprof.report.html.snapshot.page import page_title, write_snapshot_page

    entry = chosen.entry
    title = chosen.path.name if entry is None else page_title(entry.run_name, entry.rank, entry.batch)
    html.parent.mkdir(parents=True, exist_ok=True)
    write_snapshot_page(content, html, printable(title))


def _inspect_functions(run: LocalRun, as_json: bool) -> None:
    from composer_memprof.analysis.function_growth import read_function_growth
    from composer_memprof.report.text.terminal.function_tables import function_growth_text

    with file_errors_in_one_line(run.path, named=run.named):
        functions = read_function_growth(run.path)
    if as_json:
        values = {'functions': [dataclasses.asdict(one) for one in functions]}
        typer.echo(json.dumps(versioned('inspect', values)))
    else:
        show(function_growth_text(functions))


def diff(
    before: str = typer.Argument(
        ..., help="a memory snapshot, or a run's folder, on this disk or in a store, such as s3://…", metavar='A'
    ),
    after: str = typer.Argument(..., help='another', metavar='B'),
    html: Optional[Path] = typer.Option(None, help='write a page with both on one scale to this .html', metavar='FILE'),
    as_json: bool = typer.Option(False, '--json', help='print as JSON'),
) -> None:
    """Show what grew from A to B at the peak. In a run's folder, each rank's snapshot of a failure, else its newest, is compared.

    \b
    Examples:
      composer-memprof diff runs/before runs/after
      composer-memprof diff s3://bucket/runs/before runs/after
      composer-memprof diff a.pickle b.pickle --html x.html
    """
    from composer_memprof.analysis.memory.findings.diff import diff as compare
    from composer_memprof.analysis.run import snapshots_by_rank
    from composer_memprof.analysis.run_report.report import compared_paths
    from composer_memprof.report.html.run.page import write_run_page
    from composer_memprof.report.text.terminal.snapshot_tables import diff_text

    _check_page(html)

    with on_this_disk([before, after], lambda folder: snapshots_by_rank(folder).values()) as runs:
        first, second = runs

        def named(text: str) -> str:
            return second.named(first.named(text))

        with file_errors_in_one_line(first.path, second.path, named=named):
            found = compare(first.path, second.path, limit_memory=True)
        found = dataclasses.replace(
            found,
            before=list(map(named, found.before)),
            after=list(map(named, found.after)),
            notes=list(map(named, found.notes)),
        )
        if as_json:
            typer.echo(json.dumps(dataclasses.asdict(found)))
        else:
            show(diff_text(found))
        if html is not None:
            with file_errors_in_one_line(first.path, second.path, named=named):
                write_run_page(compared_paths((first.path, before), (second.path, after)), html)
            if not as_json:
                typer.echo(f'\nopen in a browser: {printable(str(html))}')
