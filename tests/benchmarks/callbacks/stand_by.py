"""A step with a MemorySnapshot that waits for memory to run out, against one without."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from composer.core import Callback

from composer_memprof import MemorySnapshot
from tests.benchmarks.callbacks.idle import NEVER
from tests.benchmarks.figures import Report
from tests.benchmarks.trainers import quickstart_trainer


def stand_by(rounds: int, report: Report) -> None:
    """What it costs to be ready for the day when memory runs out, on a CPU: the whole fit, not steps alone."""
    chunk = 20
    make: dict[str, Callable[[], list[Callback]]] = {
        'none': list,
        'ours': lambda: [MemorySnapshot(schedule=NEVER, on_oom=True)],
    }
    trainers = {name: quickstart_trainer(callbacks()) for name, callbacks in make.items()}
    taken: dict[str, list[float]] = {name: [] for name in make}
    for number in range(rounds + 1):
        for name in sorted(make, reverse=number % 2 == 1):
            begin = time.perf_counter()
            trainers[name].fit(duration=f'{chunk}ba')
            if number:
                taken[name].append((time.perf_counter() - begin) / chunk)
    for trainer in trainers.values():
        trainer.close()
    print(f'  a step without: {statistics.median(taken["none"]) * 1e3:.1f} ms')
    ratio = statistics.median(ours / none for ours, none in zip(taken['ours'], taken['none']))
    report('MemorySnapshot(on_oom=True) on a CPU, outside of windows, against none, a step', ratio)
