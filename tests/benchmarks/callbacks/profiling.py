"""A step that TorchProfiler records, against bare ``torch.profiler``."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from composer.core import Callback
from torch.profiler import ProfilerActivity

from composer_memprof import TorchProfiler
from tests.benchmarks.figures import Report
from tests.benchmarks.trainers import BatchTimer, gpt_trainer


class BareProfile(Callback):
    """torch's profiler by hand over the same batches, with the same switches."""

    def __init__(self, first: int, last: int, **arguments: Any) -> None:
        self.first, self.last = first, last
        self.profile = torch.profiler.profile(activities=[ProfilerActivity.CPU], **arguments)

    def batch_start(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch.value == self.first:
            self.profile.prepare_trace()
            self.profile.start_trace()

    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch.value == self.last:
            self.profile.stop_trace()


def profiling(rounds: int, report: Report) -> None:
    first, active, batches = 5, 30, 40
    switches: dict[str, Any] = {'profile_memory': True, 'with_flops': True, 'record_shapes': False, 'with_stack': False}
    make: dict[str, Callable[[], Callback]] = {
        'bare': lambda: BareProfile(first, first + active, **switches),
        'ours': lambda: TorchProfiler(schedule={'skip': f'{first}ba', 'active': f'{active}ba'}, **switches),
    }
    medians: dict[str, list[float]] = {name: [] for name in make}
    for number in range(rounds * 3):
        for name in sorted(make, reverse=number % 2 == 1):
            times = BatchTimer()
            # Between them, so that each step's own end is in it, and the window's end is not.
            trainer = gpt_trainer([times, make[name]()], batches)
            trainer.fit()
            medians[name].append(statistics.median(times.seconds[first + 1 : first + active - 1]))
            trainer.close()
    ratio = statistics.median(ours / bare for ours, bare in zip(medians['ours'], medians['bare']))
    print(f'  a step under bare torch.profiler: {statistics.median(medians["bare"]) * 1e3:.2f} ms')
    report('TorchProfiler active against bare torch.profiler, a step', ratio, 1.05)
