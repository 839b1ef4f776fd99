"""A step while HostRSS reads the host's memory, against one without."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from composer.core import Callback

from composer_memprof import HostRSS
from tests.benchmarks.figures import Report
from tests.benchmarks.trainers import BatchTimer, quickstart_trainer


def sampling(rounds: int, report: Report) -> None:
    chunk = 20
    make: dict[str, Callable[[], list[Callback]]] = {
        'none': list,
        '2 Hz': lambda: [HostRSS(interval=0.5)],
        '10 Hz': lambda: [HostRSS(interval=0.1)],
    }
    times = {name: BatchTimer() for name in make}
    trainers = {name: quickstart_trainer([times[name], *callbacks()]) for name, callbacks in make.items()}
    taken: dict[str, list[float]] = {name: [] for name in make}
    names = list(make)
    for number in range(rounds * 3 + 1):
        for name in names[number % 3 :] + names[: number % 3]:  # each in each place
            trainers[name].fit(duration=f'{chunk}ba')
            if number:  # the first is the warm-up; so is each chunk's beginning, with the window's own start
                taken[name].append(statistics.fmean(times[name].seconds[-chunk + 2 :]))
    for trainer in trainers.values():
        trainer.close()
    print(
        f'  a step without: {statistics.median(taken["none"]) * 1e3:.1f} ms, {len(taken["none"])} x {chunk} steps each'
    )
    for name in ('2 Hz', '10 Hz'):
        ratios = [on / off for on, off in zip(taken[name], taken['none'])]
        report(f'HostRSS at {name} against none, a step', statistics.median(ratios), 1.01)
        quarters = statistics.quantiles(ratios, n=4)
        print(f'  middle half of the ratios: {quarters[0]:.3f} to {quarters[2]:.3f}')
