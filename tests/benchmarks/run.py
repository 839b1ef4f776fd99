"""The cost of the callbacks, as ratios from one run on this machine: ``make bench``.

Everything that is compared runs in turn, round after round, so that a machine that slows down slows both; a ratio is
the median over the rounds. Each line gives the figure, the ratio, and the goal. Each benchmark has a process of its own, in
which none ran before it. With ``--check`` the figures of the README's table are measured and compared with it; the exit
code is 1 if one is off by more than a tenth, or misses its goal, also in a second, longer measurement.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from composer_memprof import StepTimes
from tests.benchmarks.analysis.analysis import analysis
from tests.benchmarks.analysis.answers import answers
from tests.benchmarks.analysis.page import page
from tests.benchmarks.analysis.python_calls import python_calls
from tests.benchmarks.analysis.run_report import run_report
from tests.benchmarks.artifacts.child import child
from tests.benchmarks.artifacts.kills import kills
from tests.benchmarks.artifacts.soak import soak
from tests.benchmarks.artifacts.uploads import uploads, while_training
from tests.benchmarks.callbacks.flops import flops
from tests.benchmarks.callbacks.fsdp_mem_tracker import fsdp_mem_tracker
from tests.benchmarks.callbacks.hold import hold, hold_gpu
from tests.benchmarks.callbacks.idle import idle
from tests.benchmarks.callbacks.mem_profiler import mem_profiler
from tests.benchmarks.callbacks.profiling import profiling
from tests.benchmarks.callbacks.sampling import sampling
from tests.benchmarks.callbacks.saved_tensors import saved_tensors
from tests.benchmarks.callbacks.stand_by import stand_by
from tests.benchmarks.callbacks.training import step_ratio
from tests.benchmarks.figures import ROWS, Figure, Report, claims, compare
from tests.benchmarks.simulation.simulation import simulation
from tests.commands.test_hostile_runs import read_hostile_runs

README = Path(__file__).parents[2] / 'README.md'

BENCHMARKS: dict[str, Callable[[int, Report], None]] = {
    'idle': idle,
    'profiling': profiling,
    'sampling': sampling,
    'stand_by': stand_by,
    'analysis': lambda rounds, report: analysis(rounds),
    'page': lambda rounds, report: page(rounds),
    'hold': hold,
    'child': lambda rounds, report: child(min(rounds, 3), report),
    'run_report': lambda rounds, report: run_report(min(rounds, 3), report),
    'simulation': simulation,
    'hold_gpu': hold_gpu,
    'saved_tensors': saved_tensors,
    'fsdp_mem_tracker': lambda rounds, report: fsdp_mem_tracker(rounds),
    'mem_profiler': mem_profiler,
    'flops': flops,
    'python_calls': python_calls,
    'uploads': uploads,
    'uploads_meanwhile': while_training,
    'step_times': lambda rounds, report: report('StepTimes against none, a step', step_ratio(rounds, StepTimes), 1.02),
}

#: Run only if they are named: they take three minutes, a quarter of an hour and more.
LONG: dict[str, Callable[[int, Report], None]] = {
    'answers': lambda rounds, report: answers(),
    'kills': lambda rounds, report: kills(rounds),
    'soak': lambda rounds, report: soak(rounds),
    'hostile': lambda rounds, report: read_hostile_runs(0, 2000, every_command=False),
}


#: Of a benchmark whose figure is off in a few.
_MORE_ROUNDS = 9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'names', nargs='*', choices=[*BENCHMARKS, *LONG, []], help=f'which to run; default: all but {", ".join(LONG)}'
    )
    parser.add_argument('--rounds', type=int, help='times that each is repeated; default: 7, with --check 3')
    parser.add_argument('--check', action='store_true', help="compare with the README's table; run only its rows")
    options = parser.parse_args()
    rounds = options.rounds or (3 if options.check else 7)
    print(f'{os.cpu_count()} cores, torch {torch.__version__}, {rounds} rounds')
    claimed = claims(README.read_text())
    rows = [row for row in ROWS if not options.names or row.benchmark in options.names]
    names = options.names or ([row.benchmark for row in ROWS] if options.check else list(BENCHMARKS))
    figures = _measured(names, rounds)
    if not options.check:
        return 0
    asked = {name: claimed[name] for row in rows for name in row.figures}
    odd = {name for name, (is_right, _) in zip(asked, compare(asked, figures), strict=True) if not is_right}
    again = [row.benchmark for row in rows if odd.intersection(row.figures)]
    if again and not options.rounds:
        print(f'\nOnce more, {_MORE_ROUNDS} rounds of what is not as the README says')
        figures |= _measured(again, _MORE_ROUNDS)
    print("\nAgainst the README's table:")
    results = list(compare(asked, figures))
    for is_right, sentence in results:
        print(f'  {"  " if is_right else "! "}{sentence}')
    return 0 if all(is_right for is_right, _ in results) else 1


def _measured(names: Iterable[str], rounds: int) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for name in names:
        print(f'\n{name}', flush=True)
        figures |= _in_a_process(name, rounds)
    return figures


def _in_a_process(name: str, rounds: int) -> dict[str, Figure]:
    processes = multiprocessing.get_context('spawn')
    reading, writing = processes.Pipe(duplex=False)
    process = processes.Process(target=_run, args=(name, rounds, writing))
    process.start()
    writing.close()
    try:
        figures: dict[str, Figure] = reading.recv()
    except EOFError:
        sys.exit(f'{name} failed')
    process.join()
    return figures


def _run(name: str, rounds: int, answer: Connection) -> None:
    warnings.simplefilter('ignore')
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        {**BENCHMARKS, **LONG}[name](rounds, report)
        os.chdir(Path(folder).parent)
    answer.send(report.figures)


if __name__ == '__main__':
    sys.exit(main())
