"""How much memory a run needs that does not fit: its command runs a second time, on a GPU with far more memory."""

from __future__ import annotations

import dataclasses
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from composer_memprof.artifacts.writing.temporary_folders import temporary_folder
from composer_memprof.simulated_gpu.devices import without_limit
from composer_memprof.simulation.result import Need, SimulationResult
from composer_memprof.simulation.run import Simulation, simulate


def simulate_and_find_need(
    command: Sequence[str],
    what: Simulation,
    folder: Path,
    report: Callable[[str], None] = lambda what: None,
    **streams: Any,
) -> SimulationResult:
    """As :func:`~composer_memprof.simulation.run.simulate`, and where it does not fit, with what it needs.

    The second run shows nothing, leaves none of our files, and has what is left of the time limit.

    Args:
        report: called with a line before the second run.
    """
    began = time.monotonic()
    result = simulate(command, what, folder, **streams)
    left = what.time_limit and what.time_limit - (time.monotonic() - began)
    if not result.ran_out or result.timed_out or left < 0:
        return result
    report(f'memory ran out; {what.subject} runs a second time, to find how much it needs')
    endless = dataclasses.replace(what, device=without_limit(what.device), time_limit=left)
    hidden = subprocess.DEVNULL
    with temporary_folder('simulate') as second:
        again = simulate(command, endless, second / 'files', stdin=hidden, stdout=hidden, stderr=hidden)
    peaks = [device for process in again.processes for device in process.devices]
    need = Need(
        allocated=max((peak.allocated for peak in peaks), default=0),
        reserved=max((peak.reserved for peak in peaks), default=0),
        steps=max((process.steps for process in again.processes), default=0),
        exit_code=again.exit_code,
        timed_out=again.timed_out,
    )
    return dataclasses.replace(result, need=need)
