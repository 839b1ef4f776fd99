"""Step time in a window of Memray or VizTracer, against the same tool used directly over the same batches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import memray
import viztracer
from composer.core import Callback

from composer_memprof import Memray, VizTracer
from tests.benchmarks.figures import Report
from tests.benchmarks.trainers import BatchTimer, gpt_trainer

FIRST, ACTIVE, BATCHES = 5, 20, 27
GOAL = 1.05


class ByHand(Callback):
    """The tool used as in its manual, from the start of one batch to the end of another."""

    def __init__(self, begin: Callable[[], Any], end: Callable[[Any], None]) -> None:
        self.begin, self.end = begin, end
        self.held = 0.0

    def batch_start(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch.value == FIRST:
            self.tool = self.begin()

    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch.value == FIRST + ACTIVE:
            began = time.perf_counter()
            self.end(self.tool)
            self.held = time.perf_counter() - began


def _begin_memray() -> Any:
    Path('by-hand.bin').unlink(missing_ok=True)
    tracker = memray.Tracker('by-hand.bin')
    tracker.__enter__()
    return tracker


def _begin_viztracer() -> Any:
    tracer = viztracer.VizTracer(verbose=0, output_file='by-hand.json')
    tracer.start()
    return tracer


def _end_viztracer(tracer: Any) -> None:
    tracer.stop()
    tracer.save()


def _timed(cls: Any) -> type[Callback]:
    class Timed(cls):
        held = 0.0

        def _finish(self, state: Any) -> None:
            began = time.perf_counter()
            super()._finish(state)
            self.held = time.perf_counter() - began

    return Timed


def python_calls(rounds: int, report: Report) -> None:
    schedule = {'skip': f'{FIRST}ba', 'active': f'{ACTIVE}ba'}
    tools: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        'Memray': (
            lambda: ByHand(_begin_memray, lambda tracker: tracker.__exit__(None, None, None)),
            lambda: _timed(Memray)(schedule=schedule),
        ),
        'VizTracer': (
            lambda: ByHand(_begin_viztracer, _end_viztracer),
            lambda: _timed(VizTracer)(schedule=schedule),
        ),
    }
    for tool, ways in tools.items():
        medians: list[list[float]] = [[], []]
        held: list[list[float]] = [[], []]
        for number in range(rounds * 3):
            for way in (0, 1) if number % 2 else (1, 0):
                times, callback = BatchTimer(), ways[way]()
                trainer = gpt_trainer([times, callback], BATCHES)
                trainer.fit()
                # Only the steps inside the window, without its start and end.
                medians[way].append(statistics.median(times.seconds[FIRST + 1 : FIRST + ACTIVE - 1]))
                held[way].append(callback.held)
                trainer.close()
        ratio = statistics.median(ours / theirs for theirs, ours in zip(*medians))
        print(f'  a step under {tool} by hand: {statistics.median(medians[0]) * 1e3:.2f} ms')
        report(f'{tool} recording against the tool by hand, a step', ratio, GOAL)
        ends = [statistics.median(each) * 1e3 for each in held]
        print(f'  the end of a window of {ACTIVE} batches: {ends[0]:.0f} ms by hand, {ends[1]:.0f} ms ours')
