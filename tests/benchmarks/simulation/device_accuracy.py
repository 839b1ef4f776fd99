"""How close simulated step times of single GPUs are to published ones: ``make accuracy ARGS=devices``.

``ARGS='devices WORD…'`` takes the rows that have one of these words in their line. Each runs in a forked process on the
simulated GPU: two steps, then one that is timed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Optional

from composer_memprof.simulated_gpu.devices import find_device
from composer_memprof.simulated_gpu.environment import environment_with
from composer_memprof.simulated_gpu.outside import outside_of
from composer_memprof.simulated_gpu.this_process import VARIABLE, as_variable, simulated_device
from composer_memprof.simulation.step_clock import StepClock
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
        found = _in_a_process_of_its_own(row)
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


def _in_a_process_of_its_own(row: StepTime) -> Optional[dict[str, Any]]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(writing, 'w') as answer:
                json.dump(_simulated(row), answer)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def _simulated(row: StepTime) -> dict[str, Any]:
    device = find_device(row.gpu)
    figures: dict[str, Any] = {**device.figures(), 'key': device.key, 'devices': 1}
    figures['outside'] = outside_of(device, 1).bytes
    os.environ[VARIABLE] = as_variable(figures)
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
