"""The ``composer-memprof`` command."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Optional

import typer

from composer_memprof import __version__
from composer_memprof.examples.configs import shipped_configs
from composer_memprof.messages import printable
from composer_memprof.terminal import say, show, show_own_warnings_plainly

if TYPE_CHECKING:
    from composer_memprof.analysis.memory.time_span import TimeSpan
    from composer_memprof.analysis.run import RankSnapshot
    from composer_memprof.analysis.snapshot.model import Snapshot
    from composer_memprof.analysis.stored_runs import LocalRun
    from composer_memprof.runner import Run
    from composer_memprof.simulated_gpu.devices import Device
    from composer_memprof.simulation.run import Simulation

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f'composer-memprof {__version__}')
        raise typer.Exit


# In the help of each command, a line with only ``\b`` keeps the lines after it as they are.
@app.callback()
def _settings(
    version: bool = typer.Option(
        False, '--version', help='Show the version and exit.', callback=_show_version, is_eager=True
    ),
) -> None:
    """Memory and speed profiling for training with MosaicML Composer.

    \b
    Examples:
      composer-memprof train quickstart
      composer-memprof inspect runs/quickstart
      composer-memprof callbacks
    """


@app.command()
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

    from composer_memprof.report.text.run_table import next_command, page_to_open, run_table

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


@app.command()
def callbacks(as_json: bool = typer.Option(False, '--json', help='print as JSON')) -> None:
    """List the callbacks: what each records, its parameters and their defaults.

    \b
    Example:
      composer-memprof callbacks --json
    """
    from rich.padding import Padding
    from rich.text import Text

    from composer_memprof.config.catalog import describe_callbacks, shared_defaults

    described = describe_callbacks()
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(callback) for callback in described], default=str))
        return
    shared = shared_defaults(described)
    for callback in described:
        show(Text(f'{callback.name} ({callback.class_name})'))
        show(Padding(Text(callback.records), (0, 0, 0, 2)))
        for reason in callback.unavailable:
            show(Padding(Text(f'Unavailable: {reason}'), (0, 0, 0, 2)))
        own = {name: value for name, value in callback.defaults.items() if name not in shared}
        further = f' **{callback.further_arguments}' if callback.further_arguments else ''
        show(Padding(Text(_settings_line(own) + further), (0, 0, 1, 2)))
    show(Text('Parameters of all callbacks'))
    show(Padding(Text(_settings_line(shared)), (0, 0, 0, 2)))


def _settings_line(defaults: dict[str, Any]) -> str:
    return ' '.join(f'{name}={json.dumps(value, default=str)}' for name, value in defaults.items())


@app.command()
def push(
    folder: Path = typer.Argument(..., help='searched for manifests at any depth', metavar='RUN_FOLDER'),
    as_json: bool = typer.Option(False, '--json', help='print one JSON object for each file'),
) -> None:
    """Upload the files that the manifests list as not uploaded.

    \b
    Example:
      composer-memprof push runs/my-run
    """
    from composer_memprof.artifacts import push as pushing

    if not folder.is_dir():
        say(f'RUN_FOLDER {str(folder)!r} is not a directory')
        raise typer.Exit(2)

    def report(pushed: pushing.PushResult) -> None:
        if as_json:
            typer.echo(json.dumps(dataclasses.asdict(pushed), default=str))
        elif pushed.error is None:
            typer.echo(f'uploaded {str(pushed.path)!r} to {pushed.remote!r}')
        else:
            say(f'{str(pushed.path)!r} was not uploaded to {pushed.remote!r}: {pushed.error}')

    results = pushing.push(folder, report=report)
    if not results and not as_json:
        typer.echo(f'nothing to upload under {printable(str(folder))}')
    if any(pushed.error is not None for pushed in results):
        raise typer.Exit(1)


@app.command()
def inspect(
    snapshot: str = typer.Argument(
        ...,
        help="a memory snapshot, gzipped or not; or a run's folder: the snapshot of its failure, else the newest; "
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
    from composer_memprof.analysis.memory.time_span import TimeSpan
    from composer_memprof.analysis.run import snapshot_to_show

    try:
        span = None if begin_ms is None and end_ms is None else TimeSpan(begin_ms, end_ms)
    except ValueError as error:
        say(f'--from and --to: {error}')
        raise typer.Exit(2) from None
    if html is not None and html.suffix not in ('.html', '.htm'):
        say(f'--html={str(html)!r} must end with .html')
        raise typer.Exit(2)
    with _on_this_disk([snapshot], lambda folder: [snapshot_to_show(folder, rank).path]) as (run,):
        if is_function_stats(run.path) and not run.path.is_dir():
            _inspect_functions(run, as_json)
        else:
            _inspect_snapshot(run, rank, span, html, as_json)


def _inspect_snapshot(
    run: LocalRun, rank: Optional[int], span: Optional[TimeSpan], html: Optional[Path], as_json: bool
) -> None:
    from composer_memprof.analysis.memory.snapshot_report import report_on
    from composer_memprof.analysis.run import snapshot_to_show
    from composer_memprof.analysis.snapshot.loading import load_snapshot
    from composer_memprof.report.text.snapshot_tables import chosen_text, report_text

    with _file_errors_in_one_line(run.path, named=run.named):
        chosen = snapshot_to_show(run.path, rank)
        content = load_snapshot(chosen.path, limit_memory=True)
        report = report_on(content, span)
        if html is not None:
            _write_page(content, chosen, html)
    path = run.named(str(chosen.path))
    if as_json:
        file: dict[str, Any] = {'path': path, 'rank': chosen.rank, 'failure': chosen.failure}
        file |= {'others': chosen.others, 'ranks': chosen.ranks, 'failed': chosen.failed}
        file['page'] = None if html is None else str(html)
        typer.echo(json.dumps({**dataclasses.asdict(report), 'file': file}))
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
    from composer_memprof.report.text.function_tables import function_growth_text

    with _file_errors_in_one_line(run.path, named=run.named):
        functions = read_function_growth(run.path)
    if as_json:
        typer.echo(json.dumps({'functions': [dataclasses.asdict(one) for one in functions]}))
    else:
        show(function_growth_text(functions))


@app.command()
def diff(
    before: str = typer.Argument(
        ..., help="a memory snapshot, or a run's folder, on this disk or in a store, such as s3://…", metavar='A'
    ),
    after: str = typer.Argument(..., help='another', metavar='B'),
    as_json: bool = typer.Option(False, '--json', help='print as JSON'),
) -> None:
    """Show what grew from A to B at the peak. In a run's folder, each rank's snapshot of a failure, else its newest, is compared.

    \b
    Examples:
      composer-memprof diff runs/before runs/after
      composer-memprof diff s3://bucket/runs/before runs/after
    """
    from composer_memprof.analysis.memory.diff import diff as compare
    from composer_memprof.analysis.run import snapshots_by_rank
    from composer_memprof.report.text.snapshot_tables import diff_text

    with _on_this_disk([before, after], lambda folder: snapshots_by_rank(folder).values()) as runs:
        first, second = runs

        def named(text: str) -> str:
            return second.named(first.named(text))

        with _file_errors_in_one_line(first.path, second.path, named=named):
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


@app.command()
def report(
    paths: list[str] = typer.Argument(
        ...,
        help="runs' folders, folders of memory snapshots, or snapshots; on this disk, or in a store, such as s3://…",
        metavar='PATH …',
    ),
    output: Optional[Path] = typer.Option(
        None, '-o', '--output', help="the page. Default: report.html in the run's folder", metavar='FILE'
    ),
    as_json: bool = typer.Option(False, '--json', help='print as JSON, and write a page only with --output'),
) -> None:
    """Say what fills the memory of a run, which ranks differ, and what to change; and write a page about it.

    Of two runs it says first what changed from the first to the second.

    \b
    Examples:
      composer-memprof report runs/my-run
      composer-memprof report s3://bucket/my-run -o x.html
      composer-memprof report runs/before runs/after
      composer-memprof report rank0.pickle rank1.pickle
    """
    from composer_memprof.analysis.run_report.files import files_to_fetch
    from composer_memprof.analysis.run_report.report import report_on_paths
    from composer_memprof.report.html.run.page import write_run_page
    from composer_memprof.report.text.run_verdict import verdict_text
    from composer_memprof.report.text.run_verdict_json import report_dict
    from composer_memprof.simulation.replay import with_replayed_advice

    with _on_this_disk(paths, files_to_fetch) as runs:
        folders = [run.path for run in runs]

        def named(text: str) -> str:
            return functools.reduce(lambda text, run: run.named(text), runs, text)

        with _file_errors_in_one_line(*folders, named=named):
            found = with_replayed_advice(report_on_paths([(run.path, run.name) for run in runs], named))
            page = output or (None if as_json else _page_of(paths))
            if page is not None:
                write_run_page(found, page)
    if as_json:
        typer.echo(json.dumps(report_dict(found)))
        return
    show(verdict_text(found))
    typer.echo(f'\nopen in a browser: {printable(str(page))}')


def _page_of(paths: list[str]) -> Path:
    """In the run's folder if there is one on this disk, else in the current folder."""
    return (Path(paths[0]) if len(paths) == 1 and Path(paths[0]).is_dir() else Path()) / 'report.html'


@app.command(name='ls')
def list_files(
    folder: Path = typer.Argument(..., help='searched for manifests at any depth', metavar='RUN_FOLDER'),
    as_json: bool = typer.Option(False, '--json', help='print as JSON'),
) -> None:
    """List the files of a run that its manifests name.

    \b
    Example:
      composer-memprof ls runs/my-run
    """
    from composer_memprof.analysis.run import list_artifacts
    from composer_memprof.report.text.run_table import artifacts_table

    if not folder.is_dir():
        say(f'RUN_FOLDER {str(folder)!r} is not a directory')
        raise typer.Exit(2)
    artifacts = list_artifacts([folder], recursive=True)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(artifact) for artifact in artifacts], default=str))
    elif artifacts:
        show(artifacts_table(artifacts, 'Files'))
    else:
        typer.echo(f'no manifest under {printable(str(folder))} lists a file')


@app.command()
def watch(
    folder: Path = typer.Argument(..., help="a run's folder", metavar='RUN_FOLDER'),
    every: float = typer.Option(5.0, min=0.5, help='seconds between two looks'),
) -> None:
    """Show the verdict on a run while it goes on, from its files alone. Ends with the run, or with Ctrl-C.

    \b
    Example:
      composer-memprof watch runs/my-run
    """
    from composer_memprof.report.text.watching import watch as watch_run

    try:
        watch_run(folder, every)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


@app.command(context_settings={'allow_interspersed_args': False})
def simulate(
    command: list[str] = typer.Argument(..., help='what to run, such as: python train.py', metavar='-- COMMAND …'),
    gpu: Optional[str] = typer.Option(None, help='the kind of GPU. Default: h100-80gb', metavar='NAME'),
    memory: Optional[str] = typer.Option(None, help='its memory, such as 24GB; without --gpu, of one made by hand'),
    compute_capability: str = typer.Option('9.0', help='of one made by hand'),
    ranks: Optional[int] = typer.Option(None, min=1, help='stand for one rank among this many'),
    rank: int = typer.Option(0, min=0, help='which of the ranks'),
    ranks_per_node: Optional[int] = typer.Option(None, min=1, help='Default: 8, or all if they are fewer'),
    steps: int = typer.Option(
        3, min=0, help='end the command after this many optimizer steps; 0: let it end by itself'
    ),
    devices: Optional[int] = typer.Option(
        None, min=1, max=64, help='how many GPUs the machine has. Default: one for each rank of a node'
    ),
    kept: float = typer.Option(1.0, min=0, max=1, help='which part of its elements a mask is taken to keep'),
    time_limit: float = typer.Option(0, min=0, help='end it after this many seconds; 0: no limit'),
    find_need: bool = typer.Option(
        False, help='if memory runs out, run COMMAND a second time, on more memory, to see how much it needs'
    ),
    folder: Optional[Path] = typer.Option(None, help='for the recording. Default: simulated/…, a new one each time'),
    largest: Optional[int] = typer.Option(
        None, min=1, help='search the largest number up to this one that fits in the place of {} in COMMAND'
    ),
    as_json: bool = typer.Option(
        False, '--json', help='print the result as JSON; the output of COMMAND goes to stderr'
    ),
) -> None:
    """Run any command on a GPU that is not there, and say whether it fits. Needs no GPU.

    torch's own allocator runs as on a real one, so sizes are exact. Kernels do not run, so values are zeros.
    The command really runs: it writes the files that it writes, with those values in them. Only torch.save leaves a
    file alone that is there.

    \b
    Examples:
      composer-memprof simulate --gpu a100-40gb -- python train.py
      composer-memprof simulate --ranks 64 -- composer train.py
      composer-memprof simulate --largest 99 -- python x.py {}
    """
    from composer_memprof.simulated_gpu.building import CannotSimulateError
    from composer_memprof.simulation.need import simulate_and_find_need
    from composer_memprof.simulation.run import Simulation, as_one_rank, hidden_gpu, new_folder
    from composer_memprof.simulation.run import simulate as run
    from composer_memprof.simulation.text import next_command, simulation_text

    device = _device(gpu, memory, compute_capability)
    what = Simulation(device, ranks, rank, ranks_per_node, steps, time_limit, kept, devices)
    try:
        words, what = as_one_rank(command, what)
    except ValueError as error:
        say(str(error))
        raise typer.Exit(2) from None
    if rank >= (what.ranks or 1):
        say(f'--rank={rank} must be below the number of ranks, {what.ranks or 1}')
        raise typer.Exit(2)
    if hidden_gpu():
        say('the command does not see the GPU of this machine')
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        say(f'--folder={str(folder)!r} must be a new or an empty folder')
        raise typer.Exit(2)
    if folder is not None and largest is not None:
        say('--largest records nothing, so that it takes no --folder')
        raise typer.Exit(2)
    try:
        if largest is not None:
            _search(words, largest, what, as_json)
        streams = {'stdout': sys.stderr} if as_json else {}
        kept_in = folder or new_folder(words, device.key)
        if find_need:
            result = simulate_and_find_need(words, what, kept_in, say, **streams)
        else:
            result = run(words, what, kept_in, **streams)
    except CannotSimulateError as error:
        say(str(error))
        raise typer.Exit(1) from None
    except OSError as error:
        say(f'{words[0]!r} cannot be started: {error.strerror or error}')
        raise typer.Exit(127) from None
    if as_json:
        typer.echo(json.dumps(result.as_dict()))
    else:
        show(simulation_text(result))
        if next_command(result):
            typer.echo(f'Next, try: {next_command(result)}')
    if result.timed_out:
        say(f'the command was ended after {time_limit:g} seconds (--time-limit)')
    raise typer.Exit(result.exit_code)


def _search(command: list[str], most: int, what: Simulation, as_json: bool) -> NoReturn:
    """Print the largest number that fits. Exits with 0, with 3 if none fits, or as the command if it fails with 1."""
    from composer_memprof.simulation.search import largest_that_fits
    from composer_memprof.simulation.text import search_text

    try:
        found = largest_that_fits(command, most, what, report=lambda number: say(f'trying {number}'))
    except ValueError as error:
        say(f'--largest: {error}')
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps({**dataclasses.asdict(found), 'limit': found.limit}))
    else:
        show(search_text(found))
    raise typer.Exit(0 if found.largest else found.tried[0].exit_code if found.tried[0].error else 3)


def _device(gpu: Optional[str], memory: Optional[str], compute_capability: str) -> Device:
    from composer_memprof.simulated_gpu import devices

    try:
        if gpu is None and memory is not None:
            return devices.device_by_hand(memory, compute_capability)
        named = devices.find_device(gpu or 'h100-80gb')
        return named if memory is None else devices.with_memory(named, memory)
    except devices.UnknownDeviceError as error:
        say(str(error))
        raise typer.Exit(2) from None


@app.command()
def plan(
    config: str = typer.Argument(
        ..., help=f'a YAML file, or a config that ships: {", ".join(shipped_configs())}', metavar='CONFIG'
    ),
    overrides: Optional[list[str]] = typer.Argument(None, help='settings to change', metavar='key=value'),
    gpu: Optional[str] = typer.Option(None, help='the kind of GPU. Default: h100-80gb', metavar='NAME'),
    memory: Optional[str] = typer.Option(None, help='its memory, such as 24GB; without --gpu, of one made by hand'),
    compute_capability: str = typer.Option('9.0', help='of one made by hand'),
    ranks: int = typer.Option(1, min=1, help='how many GPUs it trains on'),
    ranks_per_node: Optional[int] = typer.Option(None, min=1, help='Default: 8, or all if they are fewer'),
    vary: Optional[list[str]] = typer.Option(
        None, help='key=a,b,c: try each value; several make a grid, in place of the changes', metavar='KEY=A,B,…'
    ),
    changes: bool = typer.Option(True, help='search the largest microbatch, and try what could be changed'),
    as_json: bool = typer.Option(False, '--json', help='print as JSON'),
) -> None:
    """Say whether a config fits on a GPU, what fills its memory, and what to change. Needs no GPU.

    Each figure is that of a trial: two batches on a simulated GPU. Exits with 0 if it fits, with 3 if it does not.

    \b
    Examples:
      composer-memprof plan quickstart --gpu t4
      composer-memprof plan my.yaml --gpu a100-40gb --ranks 8 \\
        --vary device_train_microbatch_size=1,2,4
    """
    from composer_memprof.plan.starting import parsed_variation, start
    from composer_memprof.simulated_gpu.building import CannotSimulateError

    device = _device(gpu, memory, compute_capability)
    try:
        grid = [parsed_variation(each) for each in vary or []]
        start(config, overrides or [], device, ranks, ranks_per_node, grid, changes, as_json)
    except ValueError as error:
        say(str(error))
        raise typer.Exit(2) from None
    except CannotSimulateError as error:
        say(str(error))
        raise typer.Exit(1) from None


@contextlib.contextmanager
def _on_this_disk(paths: list[str], choose: Callable[[Path], Iterable[Path]]) -> Iterator[list[LocalRun]]:
    """The runs or files at paths or addresses of stores; turns errors into one line and an exit code."""
    from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError
    from composer_memprof.analysis.stored_runs import local_run
    from composer_memprof.artifacts.fetching import FetchError

    with contextlib.ExitStack() as stack:
        try:
            runs = [stack.enter_context(local_run(path, choose)) for path in paths]
        except (SnapshotError, FetchError) as error:
            say(str(error))
            raise typer.Exit(2 if isinstance(error, FetchError) else 1) from None
        yield runs


@contextlib.contextmanager
def _file_errors_in_one_line(*paths: Path, named: Callable[[str], str] = str) -> Iterator[None]:
    """Read files that are not trusted: limits the time, and turns errors into one line and an exit code.

    Args:
        paths (Path): what is read.
        named (Callable): puts the names that the user gave into a message. Default: it is left as it is.
    """
    from composer_memprof.analysis.snapshot.limits import run_in_child_with_time_limit, seconds_to_read
    from composer_memprof.analysis.snapshot.loading import SnapshotError

    try:
        run_in_child_with_time_limit(seconds_to_read(paths))
    except TimeoutError as error:
        names = named(' and '.join(map(str, paths)))
        say(f'{names}: {error}; a valid snapshot of this size takes a fraction of that time')
        raise typer.Exit(1) from None

    try:
        # Python itself writes a second line when memory runs out inside a buffer.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    except OSError as error:
        say(f'{named(str(error.filename or "the file"))!r} cannot be read: {error.strerror or error}')
        raise typer.Exit(2) from None
    except SnapshotError as error:
        say(named(str(error)))
        raise typer.Exit(1) from None


def main() -> None:
    app(prog_name='composer-memprof')


if __name__ == '__main__':
    main()
