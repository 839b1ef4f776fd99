"""How long the end of a MemorySnapshot's window blocks the training thread."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import composer.callbacks
import torch
from composer.core import Callback, State
from composer.loggers import Logger

from composer_memprof import MemorySnapshot
from composer_memprof.analysis.memory.summary import write_summary
from composer_memprof.analysis.snapshot.loading import read_snapshot
from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.recorders.allocations.snapshot_pickle import write_pickle
from composer_memprof.report.html.snapshot.page import write_snapshot_page
from composer_memprof.simulated_gpu.devices import find_device
from composer_memprof.simulated_gpu.environment import environment_with
from tests.benchmarks.figures import Report
from tests.benchmarks.trainers import gpt_trainer
from tests.conftest import child_environment


class Timed(MemorySnapshot):
    """Measures a window's end: the profiler's own stop, the rest, and the rest if it were done inline, in seconds."""

    def fit_start(self, state: State, logger: Logger) -> None:
        super().fit_start(state, logger)
        assert self.kineto is not None
        stop = self.kineto.stop

        def timed(reader: object = None) -> Any:
            begin = time.perf_counter()
            try:
                return stop(reader)
            finally:
                self.stopping = time.perf_counter() - begin

        self.kineto.stop = timed  # type: ignore[method-assign]

    def _stop(self, state: State, stamp: Stamp) -> None:
        self.began = time.perf_counter()
        super()._stop(state, stamp)

    def _save(self, make: Callable[[], dict[str, Any]], stamp: Stamp, failure: str = '') -> None:
        super()._save(make, stamp, failure)
        begin = time.perf_counter()
        self.held = begin - self.began - self.stopping
        snapshot = make()
        write_pickle(snapshot, Path('inline.pickle'))
        columns = read_snapshot(snapshot)
        write_snapshot_page(columns, Path('inline.html'), 'inline')
        write_summary(columns, Path('inline.json'))
        self.inline = time.perf_counter() - begin
        self.events = sum(len(trace) for trace in snapshot['device_traces'])


def hold(rounds: int, report: Report) -> None:
    """On a CPU: the time after the profiler's own stop, compared with doing it inline."""
    held, inline, stopping, events = [], [], [], 0
    for _ in range(rounds):
        callback = Timed(schedule={'skip': '2ba', 'active': '30ba'})
        trainer = gpt_trainer([callback], 34)
        trainer.fit()
        trainer.close()
        held.append(callback.held)
        inline.append(callback.inline)
        stopping.append(callback.stopping)
        events = callback.events
    print(f"  {events:,} events; the profiler's own stop {statistics.median(stopping) * 1e3:.0f} ms")
    print(f'  after it: {statistics.median(held) * 1e3:.0f} ms held, inline {statistics.median(inline) * 1e3:.0f} ms')
    ratio = statistics.median(mine / done for mine, done in zip(held, inline))
    report("MemorySnapshot's hold after the profiler's stop against doing it inline", ratio, 0.1)


_GPU_BATCHES = 400
_CHILD = """
import json, sys
from dataclasses import asdict
import torch
from tests.benchmarks.callbacks.hold import hold_gpu
from tests.benchmarks.figures import Report
assert torch.cuda.is_available(), 'the GPU is not simulated'
report = Report()
hold_gpu(int(sys.argv[1]), report)
print(json.dumps([asdict(figure) for figure in report.figures.values()]))
"""


class Held(Callback):
    """Measures the longest ``batch_end`` of the callback that it is mixed into, in seconds."""

    held = 0.0

    def batch_end(self, state: State, logger: Logger) -> None:
        begin = time.perf_counter()
        super().batch_end(state, logger)
        self.held = max(self.held, time.perf_counter() - begin)


class Ours(Held, MemorySnapshot):
    pass


class Composers(Held, composer.callbacks.MemorySnapshot):
    pass


def _seconds_to_allocate() -> float:
    begin = time.perf_counter()
    for _ in range(20_000):
        torch.empty(1000, device='cuda')
    return time.perf_counter() - begin


def hold_gpu(rounds: int, report: Report) -> None:
    """On a GPU: the window's end, compared with that of Composer's callback on the same batches."""
    if not torch.cuda.is_available():
        _on_simulated_gpu(rounds, report)
        return
    window: dict[str, Any] = {'skip_batches': 2, 'interval': f'{_GPU_BATCHES}ba', 'max_entries': 5_000_000}
    _seconds_to_allocate()
    before = min(_seconds_to_allocate() for _ in range(5))
    held: dict[str, list[float]] = {'ours': [], 'composer': []}
    for number in range(rounds):
        for name, cls in (('ours', Ours), ('composer', Composers)):
            callback = cls(**window, remote_file_name=None, folder=f'{number}/{name}')
            trainer = gpt_trainer([callback], _GPU_BATCHES + 4, device='gpu')
            trainer.fit()
            trainer.close()
            held[name].append(callback.held)
    after = min(_seconds_to_allocate() for _ in range(5))
    (made,) = Path(f'{rounds - 1}/ours').glob('*.summary.json')
    events = json.loads(made.read_text())['devices'][0]['peak']['events']
    print(f'  {torch.cuda.get_device_name()}, {events:,} events')
    print('  ' + ', '.join(f'{name} {statistics.median(times) * 1e3:.0f} ms held' for name, times in held.items()))
    ratio = statistics.median(ours / theirs for ours, theirs in zip(held['ours'], held['composer']))
    report("MemorySnapshot's hold on a GPU against Composer's", ratio, 0.1)
    report('an allocation after the windows against before them', after / before, 1.1)


def _on_simulated_gpu(rounds: int, report: Report) -> None:
    """Without a GPU: in a process of its own, because a process is prepared for a simulated GPU before it imports torch."""
    environment = environment_with(find_device('h100-80gb'), base=child_environment())
    command = [sys.executable, '-W', 'ignore', '-c', _CHILD, str(rounds)]
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    *said, figures = ran.stdout.splitlines()
    print('\n'.join(line for line in said if line.startswith('  ')))
    for figure in json.loads(figures):
        report(**figure)
