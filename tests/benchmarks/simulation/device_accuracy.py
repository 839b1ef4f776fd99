"""How close simulated step times of single GPUs are to published ones: ``make accuracy ARGS=devices``.

``ARGS='devices WORD…'`` takes the rows that have one of these words in their line. Each runs in a forked process on the
simulated GPU: two steps, then one that is timed.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from composer_memprof.simulated_gpu.devices import find_device
from composer_memprof.simulated_gpu.environment import environment_with
from composer_memprof.simulated_gpu.this_process import simulated_device
from composer_memprof.simulation.step_clock import StepClock
from tests.benchmarks.simulation.forks import become, in_a_fork
from tests.benchmarks.simulation.published_step_times import StepTime, step_times

_MODULE = 'tests.benchmarks.simulation.device_accuracy'
_SHARES = ('matrix_products', 'attention', 'other_operators', 'optimizer', 'waiting_for_host')


def main(arguments: Sequence[str]) -> None:
    """Print the tables. The process replaces itself by one on the simulated GPU."""
    if simulated_device() is None:
        environment = environment_with(find_device('a100-80gb')) | {'PYTHONWARNINGS': 'ignore'}
        os.execve(sys.executable, [sys.executable, '-m', _MODULE, *arguments], environment)
    print('| GPU | source | step | ms: simulated | real | error | products, attention, others, optimizer, host |')
    print('|---|---|---|---|---|---|---|')
    errors: dict[str, list[float]] = {}
    for row in step_times():
        words = f'{row.gpu} {row.source} {row.what}'
        if arguments and not any(word in words for word in arguments):
            continue
        found = in_a_fork(functools.partial(_simulated, row))
        if found is None:
            print(f'| {row.gpu} | {row.source} | {row.what} | does not run | {1000 * row.seconds:.1f} |', flush=True)
            continue
        error = found['seconds'] / row.seconds - 1
        errors.setdefault(row.gpu, []).append(error)
        shares = ', '.join(f'{found["shares"].get(name, 0):.0%}' for name in _SHARES)
        print(
            f'| {row.gpu} | {row.source} | {row.what} | {1000 * found["seconds"]:.1f} | {1000 * row.seconds:.1f} '
            f'| {error:+.0%} | {shares} |',
            flush=True,
        )
    print('\n| GPU | rows | median error | largest |\n|---|---|---|---|')
    for gpu, each in errors.items():
        sizes = [abs(error) for error in each]
        print(f'| {gpu} | {len(each)} | {statistics.median(sizes):.0%} | {max(sizes):.0%} |')


def _simulated(row: StepTime) -> dict[str, Any]:
    become(row.gpu, devices=1, ranks=1)
    step = row.make()
    for _ in range(2):
        step()
    clock = StepClock()
    clock.start()
    step()
    found = clock.stop()
    assert found is not None, 'the log says why'
    return {'seconds': found.step_seconds, **dataclasses.asdict(found)}


if __name__ == '__main__':
    main(sys.argv[1:])
