"""Commands and configs on a GPU that is not there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Optional

import typer

from composer_memprof.commands.devices import device_named
from composer_memprof.examples.configs import shipped_configs
from composer_memprof.terminal import say, show

if TYPE_CHECKING:
    from composer_memprof.simulation.asking import Request


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
    with_evaluation: bool = typer.Option(
        False, '--eval', help='go on until one evaluation and one checkpoint were made after the first step'
    ),
    devices: Optional[int] = typer.Option(
        None, min=1, max=64, help='how many GPUs the machine has. Default: one for each rank of a node'
    ),
    kept: list[str] = typer.Option(
        ['1'],
        help='which part of its elements a mask is taken to keep where its values are not known, such as 0.5; for one '
        'line: train.py:41=0.125. Can be given several times',
        metavar='PART | FILE:LINE=PART',
    ),
    values: bool = typer.Option(
        True,
        help='compute small values that follow from the host, constants, shapes and random numbers, and guess others; '
        'with --no-values the script reads zeros',
    ),
    time_limit: float = typer.Option(0, min=0, help='end it after this many seconds; 0: no limit'),
    find_need: bool = typer.Option(
        False, help='if memory runs out, run COMMAND a second time, on more memory, to see how much it needs'
    ),
    versus: Optional[Path] = typer.Option(
        None, help='compare with a memory snapshot of the command on a real GPU', metavar='SNAPSHOT.pickle'
    ),
    calibrate: Optional[Path] = typer.Option(
        None,
        help='a run of COMMAND with a torch trace of a real GPU, or such a trace: take a factor for each class of kernels '
        'from it (with --trace), and keep them in calibration.json; a run with step times: one factor for all; or such a '
        'file: use its factors',
        metavar='RUN | TRACE | FILE.json',
    ),
    trace: Optional[Path] = typer.Option(
        None, help='write what each stream does in one step, for Perfetto, TensorBoard or HTA, such as step.json'
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

    torch's own allocator runs as on a real one, so sizes are exact. Kernels do not run: small values that do not follow
    from weights are right, all others are guessed or zeros.
    The command really runs: it writes the files that it writes, with those values in them. Only torch.save leaves a
    file alone that is there. Exits with 0 if it fits, with 3 if it does not, with 2 if nothing was seen (such as no
    optimizer step), and with the command's own code if that failed by itself.

    \b
    Examples:
      composer-memprof simulate --gpu a100-40gb -- python train.py
      composer-memprof simulate --ranks 64 -- composer train.py
      composer-memprof simulate --largest 99 -- python x.py {}
    """
    from composer_memprof.simulated_gpu.building import CannotSimulateError
    from composer_memprof.simulation.asking import CannotStartError, request
    from composer_memprof.simulation.guesses import kept_parts
    from composer_memprof.simulation.output.whole import next_line, output_text, simulation_dict
    from composer_memprof.simulation.run import Simulation, hidden_gpu

    device = device_named(gpu, memory, compute_capability)
    try:
        part, kept_at = kept_parts(kept, values)
        what = Simulation(
            device,
            ranks,
            rank,
            ranks_per_node,
            steps,
            with_evaluation,
            time_limit,
            part,
            devices,
            keeps_recording=versus is not None,
            values=values,
            kept_at=kept_at,
            trace=trace,
        )
        real = None
        if calibrate is not None:
            from composer_memprof.commands.calibrating import calibrated, keep_factors, keep_one_factor

            what, real = calibrated(what, calibrate)
        asked = request(command, what, folder=folder, versus=versus, largest=largest)
    except ValueError as error:
        say(str(error))
        raise typer.Exit(2) from None
    if hidden_gpu():
        say('the command does not see the GPU of this machine')
    try:
        if largest is not None:
            _search(asked, largest, as_json)
        result, compared = asked.run(find_need, say, **({'stdout': sys.stderr} if as_json else {}))
    except CannotSimulateError as error:
        say(str(error))
        raise typer.Exit(1) from None
    except CannotStartError as error:
        say(str(error))
        raise typer.Exit(127) from None
    if as_json:
        typer.echo(json.dumps(simulation_dict(result, versus is not None, compared)))
    else:
        show(output_text(result, compared))
        if next_line(result):
            typer.echo(next_line(result))
        if versus is not None and compared is None:
            say('--versus: the simulated run left no recording to compare')
    if trace is not None:
        is_there = any(process.trace for process in result.processes)
        say(f'the trace of a step: {trace}' if is_there else '--trace: no step was timed, so that there is no trace')
        if is_there and isinstance(real, Path):
            keep_factors(real, trace, device.key)
    if calibrate is not None and isinstance(real, float):
        if result.time is None:
            say('--calibrate: no step was timed, so that there is no factor')
        else:
            keep_one_factor(real, result.time.step_seconds, device.key, calibrate)
    if result.timed_out:
        say(f'the command was ended after {time_limit:g} seconds (--time-limit)')
    raise typer.Exit(result.code)


def _search(asked: Request, most: int, as_json: bool) -> NoReturn:
    """Print the largest number that fits. Exits with 0, with 3 if none fits, with 2 or the command's own code if 1 was
    not seen.
    """
    from composer_memprof.simulation.output.text import search_text
    from composer_memprof.simulation.output.whole import search_dict

    try:
        found = asked.search(most, report=lambda number: say(f'trying {number}'))
    except ValueError as error:
        say(f'--largest: {error}')
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(search_dict(found)))
    else:
        show(search_text(found))
    raise typer.Exit(0 if found.largest else (found.tried[0].exit_code or 2) if found.tried[0].error else 3)


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
    calibrate: Optional[Path] = typer.Option(
        None, help='multiply durations by the factors that simulate --calibrate has kept', metavar='FILE.json'
    ),
    fastest: bool = typer.Option(
        False, '--fastest', help='search the fastest config that fits, with batches of the same size; no changes'
    ),
    with_evaluation: bool = typer.Option(
        False, '--eval', help='evaluate, if the config does, and write a checkpoint after each batch'
    ),
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
    from composer_memprof.plans.starting import parsed_variation, start
    from composer_memprof.simulated_gpu.building import CannotSimulateError
    from composer_memprof.simulated_gpu.calibration import read_factors

    device = device_named(gpu, memory, compute_capability)
    try:
        grid = [parsed_variation(each) for each in vary or []]
        factors = None if calibrate is None else read_factors(calibrate)
        named = {'fastest': fastest, 'factors': factors, 'with_evaluation': with_evaluation}
        start(config, overrides or [], device, ranks, ranks_per_node, grid, changes, as_json, **named)
    except ValueError as error:
        say(str(error))
        raise typer.Exit(2) from None
    except CannotSimulateError as error:
        say(str(error))
        raise typer.Exit(1) from None
