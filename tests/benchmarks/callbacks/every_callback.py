"""All callbacks at once in repeated windows: what long runs, and runs that are killed, are tried with."""

from __future__ import annotations

from typing import Any

from composer.core import Callback

from composer_memprof import (
    Flops,
    FSDPMemTracker,
    HostRSS,
    MemorySnapshot,
    MemProfiler,
    Memray,
    SavedTensorsHook,
    StepTimes,
    TorchProfiler,
    VizTracer,
)


def every_callback(period: int, **shared: Any) -> list[Callback]:
    """One of each. Those that record a part of the run open a window every ``period`` batches, at least 20.

    Args:
        period (int): in batches.
        shared: parameters that all callbacks have.
    """

    def windows(skip: int, active: int = 2) -> dict[str, str]:
        return {'skip': f'{skip}ba', 'active': f'{active}ba', 'every': f'{period}ba'}

    return [
        HostRSS(interval=0.1, **shared),
        StepTimes(**shared),
        Flops(schedule=windows(2), **shared),
        MemProfiler(schedule=windows(3), **shared),
        SavedTensorsHook(schedule=windows(5), **shared),
        FSDPMemTracker(schedule=windows(6), **shared),
        # One at a time: torch's profiler, and what follows Python calls.
        MemorySnapshot(schedule=windows(8), **shared),
        TorchProfiler(schedule=windows(11), **shared),
        Memray(schedule=windows(14), **shared),
        VizTracer(schedule=windows(17), **shared),
    ]
