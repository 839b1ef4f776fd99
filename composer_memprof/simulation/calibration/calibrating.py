"""Takes the factors from the trace of a real run and that of the same step on the simulated GPU, and keeps them.

A run without a trace that ``StepTimes`` has recorded gives one factor, for the whole step.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Optional

from composer_memprof.analysis.run_report.files import find_files
from composer_memprof.analysis.run_report.readers import KINDS
from composer_memprof.artifacts.naming.compression import codec_of
from composer_memprof.artifacts.writing.temporary_files import replaced_whole
from composer_memprof.simulated_gpu.calibration import Factors
from composer_memprof.simulation.calibration.classes import seconds_by_class
from composer_memprof.vocabulary import WITHIN_BATCH

_TRACES, _STEP_TIMES = 'torch_profiler', 'step_times.summary'
#: Bytes of a file of factors, at most.
_LARGEST_FACTORS = 1 << 14
#: A class that takes less than this part of the kernels' time, on either side, has no factor: it would be noise.
_SMALLEST = 0.005


def trace_of(run: Path) -> Optional[Path]:
    """The newest torch trace of a run's folder, or the file itself; None if a folder has none.

    Raises:
        ValueError: if there is neither a file nor a folder.
    """
    if run.is_file():
        return run
    if not run.is_dir():
        raise ValueError(f'--calibrate={str(run)!r} is no file and no folder')
    traces = [each.checked_path() for each in find_files([run]).artifacts if each.entry.kind == _TRACES]
    traces = [path for path in traces if path.is_file()]
    return max(traces, key=lambda path: path.stat().st_mtime, default=None)


def recorded_step(run: Path) -> float:
    """Seconds of a step of a run's folder, by the clock of its GPU: of its ranks' medians the median, without the time
    that data, evaluations and checkpoints took.

    Raises:
        ValueError: if ``StepTimes`` has recorded none.
    """
    found = []
    for each in find_files([run]).artifacts:
        if each.entry.kind == _STEP_TIMES:
            file = KINDS[_STEP_TIMES].read(each.checked_path())
            if file.clock == 'cuda' and file.batches:
                seconds = {name: times['p50'] for name, times in file.seconds.items()}
                found.append(sum(seconds[name] for name in WITHIN_BATCH))
    if not found:
        raise ValueError(
            f'--calibrate={str(run)!r} must be a run with a torch trace or step times of a GPU, a trace, or a file of factors'
        )
    return statistics.median(found)


def one_factor(measured: float, simulated: float) -> Factors:
    """The same factor for all classes and the host, by which a simulated step takes as long as a measured one.

    >>> one_factor(0.3, 0.2).host
    1.5
    """
    return Factors(**{field.name: round(measured / simulated, 6) for field in dataclasses.fields(Factors)})


def is_file_of_factors(path: Path) -> bool:
    """Whether ``--calibrate`` is given a small JSON file and not a trace or a run."""
    if not path.is_file() or path.stat().st_size > _LARGEST_FACTORS:
        return False
    return b'traceEvents' not in path.read_bytes() and codec_of(path.name) is None


def factors_between(real: Path, simulated: Path) -> Factors:
    """The factors by which the classes of a simulated step are multiplied to take as long as the real ones.

    Raises:
        ValueError: if one of them is no trace of a GPU.
    """
    measured, computed = seconds_by_class(real), seconds_by_class(simulated)
    wholes = [sum(seconds for name, seconds in each.items() if name != 'host') for each in (measured, computed)]
    found = {}
    for field in dataclasses.fields(Factors):
        pair = (measured.get(field.name, 0.0), computed.get(field.name, 0.0))
        parts = [seconds / whole for seconds, whole in zip(pair, wholes, strict=True)]
        if min(pair) > 0 and (field.name == 'host' or min(parts) >= _SMALLEST):
            found[field.name] = pair[0] / pair[1]
    return Factors(**found)


def write_factors(factors: Factors, path: Path, gpu: str, taken_from: Path) -> None:
    """Write the small file that ``--calibrate`` takes again."""
    values = {'gpu': gpu, 'from': str(taken_from), 'factors': dataclasses.asdict(factors)}
    with replaced_whole(path) as unfinished:
        unfinished.write_text(f'{json.dumps(values, indent=1)}\n', encoding='utf-8')


def factors_in_words(factors: Factors) -> str:
    """
    >>> factors_in_words(Factors(attention=1.25))
    'attention 1.25, all others 1.00'
    """
    changed = {name: value for name, value in dataclasses.asdict(factors).items() if value != 1}
    words = [f'{name.replace("_", " ")} {value:.2f}' for name, value in changed.items()]
    return ', '.join([*words, 'all others 1.00'] if len(words) < len(dataclasses.fields(factors)) else words)
