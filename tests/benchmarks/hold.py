"""How long the training thread is held at the end of a MemorySnapshot's window, on a CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from composer.core import State
from composer.loggers import Logger

from composer_memprof import MemorySnapshot
from composer_memprof.analysis.snapshot_file import read_snapshot
from composer_memprof.analysis.summary import write_summary
from composer_memprof.artifacts.names import Stamp
from composer_memprof.recorders.snapshots import write_pickle
from composer_memprof.report.snapshot_page import write_snapshot_page


class Timed(MemorySnapshot):
    """Tells the seconds of a window's end, of the profiler's own stop within it, and of doing the rest inline."""

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

    def _save(self, make: Callable[[], dict[str, Any]], stamp: Stamp) -> None:
        super()._save(make, stamp)
        begin = time.perf_counter()
        self.held = begin - self.began - self.stopping
        snapshot = make()
        write_pickle(snapshot, Path('inline.pickle'))
        columns = read_snapshot(snapshot)
        write_snapshot_page(columns, Path('inline.html'), 'inline')
        write_summary(columns, Path('inline.json'))
        self.inline = time.perf_counter() - begin
        self.events = sum(len(trace) for trace in snapshot['device_traces'])


def hold(rounds: int) -> None:
    from tests.benchmarks.run import gpt_trainer, report

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
