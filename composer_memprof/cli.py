"""The ``composer-memprof`` command."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Optional

import typer

from composer_memprof import __version__
from composer_memprof.examples.configs import shipped_configs
from composer_memprof.messages import printable
from composer_memprof.terminal import say, show, show_own_warnings_plainly

if TYPE_CHECKING:
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
    report = atexit.register(_report_run, runs, as_json)
    try:
        runs.append(Run(configs.load(config, overrides or [])))
        runs[0].train()
    except configs.ConfigError as error:
        say(str(error))
        raise typer.Exit(2) from None
    atexit.unregister(report)
    report(runs, as_json)


def _report_run(runs: list[Run], as_json: bool) -> None:
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
    snapshot: Path = typer.Argument(
        ...,
        help="a memory snapshot, gzipped or not; or a run's folder: the snapshot of its failure, else the newest; "
        "or MemProfiler's memory_stats.yaml",
        metavar='SNAPSHOT',
    ),
    as_json: bool = typer.Option(False, '--json', help='print as JSON'),
) -> None:
    """Show what filled the memory at its peak, or which function's calls raised it. Runs no code from the file.

    \b
    Examples:
      composer-memprof inspect runs/my-run
      composer-memprof inspect rank0.20.pickle --json
      composer-memprof inspect rank_0_memory_stats.yaml
    """
    from composer_memprof.analysis.function_growth import is_function_stats

    if is_function_stats(snapshot) and not snapshot.is_dir():
        _inspect_functions(snapshot, as_json)
        return
    from composer_memprof.analysis.memory.snapshot_report import report_on
    from composer_memprof.analysis.run import snapshot_to_show
    from composer_memprof.analysis.snapshot.loading import load_snapshot
    from composer_memprof.report.text.snapshot_tables import chosen_text, report_text

    with _file_errors_in_one_line(snapshot):
        chosen = snapshot_to_show(snapshot)
        report = report_on(load_snapshot(chosen.path, limit_memory=True))
    if as_json:
        file = {'path': str(chosen.path), 'rank': chosen.rank, 'failure': chosen.failure, 'others': chosen.others}
        typer.echo(json.dumps({**dataclasses.asdict(report), 'file': file}))
        return
    if chosen.rank is not None:
        typer.echo(chosen_text(chosen))
    if report.devices:
        show(report_text(report))
    else:
        typer.echo(f'{printable(str(chosen.path))}: no allocation was recorded')


def _inspect_functions(path: Path, as_json: bool) -> None:
    from composer_memprof.analysis.function_growth import read_function_growth
    from composer_memprof.report.text.function_tables import function_growth_text

    with _file_errors_in_one_line(path):
        functions = read_function_growth(path)
    if as_json:
        typer.echo(json.dumps({'functions': [dataclasses.asdict(one) for one in functions]}))
    else:
        show(function_growth_text(functions))


@app.command()
def diff(
    before: Path = typer.Argument(..., help="a memory snapshot, or a run's folder", metavar='A'),
    after: Path = typer.Argument(..., help='another', metavar='B'),
    as_json: bool = typer.Option(False, '--json', help='print as JSON'),
) -> None:
    """Show what grew from A to B at the peak. In a run's folder, each rank's snapshot of a failure, else its newest, is compared.

    \b
    Example:
      composer-memprof diff runs/before runs/after
    """
    from composer_memprof.analysis.memory.diff import diff as compare
    from composer_memprof.report.text.snapshot_tables import diff_text

    with _file_errors_in_one_line(before, after):
        found = compare(before, after, limit_memory=True)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found)))
    else:
        show(diff_text(found))


@app.command()
def report(
    paths: list[Path] = typer.Argument(
        ..., help="runs' folders, folders of memory snapshots, or snapshots", metavar='PATH …'
    ),
    output: Optional[Path] = typer.Option(
        None, '-o', '--output', help="the page. Default: report.html in the run's folder", metavar='FILE'
    ),
    as_json: bool = typer.Option(False, '--json', help='print as JSON, and write a page only with --output'),
) -> None:
    """Say what fills the memory of a run, which ranks differ, and what to change; and write a page about it.

    \b
    Examples:
      composer-memprof report runs/my-run
      composer-memprof report rank0.pickle rank1.pickle -o report.html
    """
    from composer_memprof.analysis.run_report.files import find_files
    from composer_memprof.analysis.run_report.report import report_on_run
    from composer_memprof.report.html.run.page import write_run_page
    from composer_memprof.report.text.run_verdict import verdict_text
    from composer_memprof.report.text.run_verdict_json import report_dict

    with _file_errors_in_one_line(*paths):
        found = report_on_run(find_files(paths))
        page = output or (None if as_json else _page_of(paths))
        if page is not None:
            write_run_page(found, page)
    if as_json:
        typer.echo(json.dumps(report_dict(found)))
        return
    show(verdict_text(found))
    typer.echo(f'\nopen in a browser: {printable(str(page))}')


def _page_of(paths: list[Path]) -> Path:
    """In the run's folder if there is one, else in the current folder."""
    return (paths[0] if len(paths) == 1 and paths[0].is_dir() else Path()) / 'report.html'


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
    kept: float = typer.Option(1.0, min=0, max=1, help='which part of its elements a mask is taken to keep'),
    time_limit: float = typer.Option(0, min=0, help='end it after this many seconds; 0: no limit'),
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
      composer-memprof simulate --largest 512 -- python train.py --batch-size={}
    """
    from composer_memprof.simulated_gpu.building import CannotSimulateError
    from composer_memprof.simulation.run import Simulation, as_one_rank, hidden_gpu, new_folder
    from composer_memprof.simulation.run import simulate as run
    from composer_memprof.simulation.text import next_command, simulation_text

    device = _device(gpu, memory, compute_capability)
    what = Simulation(device, ranks, rank, ranks_per_node, steps, time_limit, kept)
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
        result = run(
            words, what, folder or new_folder(words, device.key), **({'stdout': sys.stderr} if as_json else {})
        )
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
        start(config, overrides or [], device, ranks, grid, changes, as_json)
    except ValueError as error:
        say(str(error))
        raise typer.Exit(2) from None
    except CannotSimulateError as error:
        say(str(error))
        raise typer.Exit(1) from None


@contextlib.contextmanager
def _file_errors_in_one_line(*paths: Path) -> Iterator[None]:
    """Read files that are not trusted: limits the time, and turns errors into one line and an exit code."""
    from composer_memprof.analysis.snapshot.limits import run_in_child_with_time_limit, seconds_to_read
    from composer_memprof.analysis.snapshot.loading import SnapshotError

    try:
        run_in_child_with_time_limit(seconds_to_read(paths))
    except TimeoutError as error:
        say(f'{" and ".join(map(str, paths))}: {error}; a valid snapshot of this size takes a fraction of that time')
        raise typer.Exit(1) from None

    try:
        # Python itself writes a second line when memory runs out inside a buffer.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    except OSError as error:
        say(f'{str(error.filename or "the file")!r} cannot be read: {error.strerror or error}')
        raise typer.Exit(2) from None
    except SnapshotError as error:
        say(str(error))
        raise typer.Exit(1) from None


def main() -> None:
    app(prog_name='composer-memprof')


if __name__ == '__main__':
    main()
