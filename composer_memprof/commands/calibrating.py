"""``simulate --calibrate``: durations by the factors of a file, or factors from a real run's trace or step times."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Union

from composer_memprof.simulated_gpu.calibration import Factors, read_factors
from composer_memprof.simulation.calibration.calibrating import (
    factors_between,
    factors_in_words,
    is_file_of_factors,
    one_factor,
    recorded_step,
    trace_of,
    write_factors,
)
from composer_memprof.simulation.calibration.classes import seconds_by_class
from composer_memprof.simulation.run import Simulation
from composer_memprof.simulation.step_time import seconds_in_words
from composer_memprof.terminal import say

#: Where the factors are kept that were taken from a run.
_KEPT_IN = Path('calibration.json')


def calibrated(what: Simulation, given: Path) -> tuple[Simulation, Union[Path, float, None]]:
    """The simulation with the factors of a file; or as it is, with the real trace, or the seconds of a real step, that it is
    to be compared with.

    Args:
        given: a file of factors, a run's folder, or a torch trace.

    Raises:
        ValueError: if it is none of these, or a real trace has no simulated one to be compared with.
    """
    if is_file_of_factors(given):
        factors = read_factors(given)
        say(f'durations are multiplied by: {factors_in_words(factors)}')
        return dataclasses.replace(what, variables={**what.variables, **factors.as_environment()}), None
    real = trace_of(given)
    if real is None:
        return what, recorded_step(given)
    seconds_by_class(real)  # refuses what is no trace of a GPU, before anything runs
    if what.trace is None:
        raise ValueError('--calibrate with a run or a trace compares it with the simulated one; add --trace FILE')
    return what, real


def keep_factors(real: Path, simulated: Path, gpu: str) -> None:
    """Print the factors between the two traces, and write them for the next time."""
    factors = factors_between(real, simulated)
    say(f'the real kernels take, in times of the simulated ones: {factors_in_words(factors)}')
    _keep(factors, gpu, real)


def keep_one_factor(measured: float, simulated: float, gpu: str, run: Path) -> None:
    """Print the factor between the seconds of two steps, and write it for the next time."""
    factors = one_factor(measured, simulated)
    say(f'a real step takes {seconds_in_words(measured)}, {factors.host:.2f} times as long as the simulated one')
    _keep(factors, gpu, run)


def _keep(factors: Factors, gpu: str, taken_from: Path) -> None:
    write_factors(factors, _KEPT_IN, gpu, taken_from)
    say(f'--calibrate {_KEPT_IN} multiplies by these')
