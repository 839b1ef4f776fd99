"""Takes the factors from the trace of a real run and that of the same step on the simulated GPU, and keeps them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from composer_memprof.analysis.run_report.files import find_files
from composer_memprof.artifacts.naming.compression import codec_of
from composer_memprof.artifacts.writing.temporary_files import replaced_whole
from composer_memprof.simulated_gpu.calibration import Factors
from composer_memprof.simulation.calibration.classes import seconds_by_class

_TRACES = 'torch_profiler'
#: Bytes of a file of factors, at most.
_LARGEST_FACTORS = 1 << 14
#: A class that takes less than this part of the kernels' time, on either side, has no factor: it would be noise.
_SMALLEST = 0.005


def trace_of(run: Path) -> Path:
    """The newest torch trace of a run's folder, or the file itself.

    Raises:
        ValueError: if there is none.
    """
    if run.is_file():
        return run
    if not run.is_dir():
        raise ValueError(f'--calibrate={str(run)!r} is no file and no folder')
    traces = [each.checked_path() for each in find_files([run]).artifacts if each.entry.kind == _TRACES]
    traces = [path for path in traces if path.is_file()]
    if not traces:
        raise ValueError(f'--calibrate={str(run)!r} must be a run with a torch trace, a trace, or a file of factors')
    return max(traces, key=lambda path: path.stat().st_mtime)


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
