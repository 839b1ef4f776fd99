"""How close simulated step times are to published ones: ``make accuracy ARGS=time``, or ``ARGS='time FILE.csv'``.

Each training runs in a forked process on the simulated GPU: two steps whose memory is judged, then one of one and one of
two microbatches that are timed. Each further microbatch takes as long as the second one.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Optional

import torch
from torch import distributed

from composer_memprof.simulated_gpu import ranks
from composer_memprof.simulated_gpu.devices import find_device
from composer_memprof.simulated_gpu.durations.attention import KERNEL_VARIABLE
from composer_memprof.simulated_gpu.environment import environment_with
from composer_memprof.simulated_gpu.rates import Rates, rates_of
from composer_memprof.simulated_gpu.this_process import simulated_device
from composer_memprof.simulation.step_clock import StepClock
from tests.benchmarks.simulation import mpt_training
from tests.benchmarks.simulation.forks import become, in_a_fork
from tests.benchmarks.simulation.mpt_training import Training
from tests.benchmarks.simulation.published_throughputs import Published, published, read

_MODULE = 'tests.benchmarks.simulation.time_accuracy'


@dataclasses.dataclass(frozen=True)
class Simulated:
    """Of one training: whether its memory sufficed, and tokens a second, with and without what was fitted."""

    fits: bool
    fitted: float = 0.0
    assumed: float = 0.0


def main(arguments: Sequence[str]) -> None:
    """Print the tables. The process replaces itself by one on the simulated GPU."""
    if simulated_device() is None:
        environment = environment_with(find_device('a100-80gb'), devices=8)
        environment |= {KERNEL_VARIABLE: 'flash-1', 'PYTHONWARNINGS': 'ignore'}
        os.execve(sys.executable, [sys.executable, '-m', _MODULE, *arguments], environment)
    rows = read(Path(arguments[0])) if arguments else published()
    print('| GPU | model | length | ranks | microbatch | checkpointed | fits | tokens/s: simulated | real | error |')
    print('|---|---|---|---|---|---|---|---|---|---|')
    found = []
    for row in rows:
        simulated = _in_a_process_of_its_own(row)
        if simulated is not None:
            found.append((row, simulated))
            print(_line(row, simulated), flush=True)
    print()
    print('| GPU | rows | what is fitted | median error | nine of ten within | rank correlation of MFU |')
    print('|---|---|---|---|---|---|')
    for gpu in ('a100-80gb', 'a100-40gb'):
        print(*_summary(gpu, [pair for pair in found if pair[0].gpu == gpu and pair[1].fits]), sep='\n')
    print(f'\n{sum(each.fits for _, each in found)} of {len(found)} published microbatches fit')
    print(_changes(found))


def _line(row: Published, simulated: Simulated) -> str:
    training = row.training
    cells = [row.gpu, training.model, training.length, training.ranks, training.microbatch]
    cells += ['yes' if training.checkpointed else 'no', 'yes' if simulated.fits else 'no']
    if simulated.fits:
        error = simulated.fitted / row.tokens_per_second - 1
        cells += [f'{simulated.fitted:,.0f}', f'{row.tokens_per_second:,.0f}', f'{error:+.1%}']
    return f'| {" | ".join(map(str, cells))} |'


def _summary(gpu: str, pairs: Sequence[tuple[Published, Simulated]]) -> Iterable[str]:
    if len(pairs) < 2:
        return
    rates = rates_of(gpu)
    fitted = [simulated.fitted / row.tokens_per_second for row, simulated in pairs]
    assumed = [simulated.assumed / row.tokens_per_second for row, simulated in pairs]
    mfu = [row.mfu for row, _ in pairs]
    for what, ratios in (
        ('nothing', assumed),
        (f'products reach {rates.reached:.1%} of their peak', fitted),
        (f'the same, and all divided by their median of {statistics.median(fitted):.3f}',
         [ratio / statistics.median(fitted) for ratio in fitted]),
    ):  # fmt: skip
        errors = sorted(abs(ratio - 1) for ratio in ratios)
        ordered = _correlation(mfu, [each * ratio for each, ratio in zip(mfu, ratios, strict=True)])
        figures = f'{statistics.median(errors):.1%} | {errors[int(0.9 * (len(errors) - 1))]:.1%} | {ordered:.2f}'
        yield f'| {gpu} | {len(pairs)} | {what} | {figures} |'


def _correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Spearman's."""
    return statistics.correlation(_ranks(left), _ranks(right))


def _ranks(values: Sequence[float]) -> list[float]:
    places = {value: statistics.mean(i for i, each in enumerate(sorted(values)) if each == value) for value in values}
    return [places[value] for value in values]


def _changes(found: Sequence[tuple[Published, Simulated]]) -> str:
    """How much a change is off by, of trainings that differ in one setting."""
    errors: dict[str, list[float]] = {'ranks': [], 'microbatch': [], 'checkpointed': []}
    for (row, one), (other, two) in itertools.permutations(found, 2):
        before, after = dataclasses.asdict(row.training), dataclasses.asdict(other.training)
        different = {key for key in before if before[key] != after[key]} - {'microbatches'}
        name = next(iter(different)) if len(different) == 1 else ''
        if row.gpu != other.gpu or name not in errors or not (one.fits and two.fits) or before[name] > after[name]:
            continue
        errors[name].append(two.fitted / one.fitted - other.tokens_per_second / row.tokens_per_second)
    lines = [
        f'{name} (pairs of rows: {len(each)}): {100 * statistics.median(map(abs, each)):.1f}'
        for name, each in errors.items()
        if each
    ]
    return (
        f'median error of a change in throughput, in points: {"; ".join(lines) or "no two rows differ in one setting"}'
    )


def _in_a_process_of_its_own(row: Published) -> Optional[Simulated]:
    found = in_a_fork(lambda: dataclasses.asdict(_simulated(row)))
    return None if found is None else Simulated(**found)


def _simulated(row: Published) -> Simulated:
    training = row.training
    become(row.gpu, devices=8, ranks=training.ranks)
    os.environ.update(ranks.environment(training.ranks))
    ranks.install()
    distributed.init_process_group('nccl')
    try:
        model, optimizer = mpt_training.make(training)
        mpt_training.step(model, optimizer, training, 1)
        mpt_training.step(model, optimizer, training, min(2, training.microbatches))
    except torch.cuda.OutOfMemoryError:
        return Simulated(fits=False)

    def tokens_per_second(rates: Rates) -> float:
        one, two = (_seconds(model, optimizer, training, count, rates) for count in (1, 2))
        seconds = one + (training.microbatches - 1) * (two - one)
        return training.length * training.microbatch * training.microbatches / seconds

    fitted = rates_of(find_device(row.gpu).key)
    return Simulated(
        True, tokens_per_second(fitted), tokens_per_second(dataclasses.replace(fitted, reached=Rates.reached))
    )


def _seconds(model: Any, optimizer: Any, training: Training, microbatches: int, rates: Rates) -> float:
    clock = StepClock(rates)
    clock.start()
    mpt_training.step(model, optimizer, training, microbatches)
    found = clock.stop()
    assert found is not None, 'the log says why'
    return found.step_seconds


if __name__ == '__main__':
    main(sys.argv[1:])
