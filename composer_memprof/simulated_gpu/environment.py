"""The environment of a process that runs on a simulated GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from composer_memprof.simulated_gpu.building import compiler_for_triton, library
from composer_memprof.simulated_gpu.devices import Device
from composer_memprof.simulated_gpu.this_process import VARIABLE, as_variable

_STARTUP = Path(__file__).with_name('startup')


def environment_with(
    device: Device,
    *,
    devices: int = 1,
    outside: int = 0,
    kept: float = 1.0,
    values: bool = False,
    kept_at: Optional[Mapping[str, float]] = None,
    base: Optional[Mapping[str, str]] = None,
) -> dict[str, str]:
    """The environment with which a child process finds ``devices`` GPUs of this kind, and no real one.

    Args:
        outside: bytes of each device's memory that lie outside of torch's allocator.
        kept: which part of its elements a mask is taken to keep, from 0 to 1; ``nonzero`` and ``unique`` too.
        values: compute small values that the host reads back; otherwise they are zeros.
        kept_at: with ``values``, the part for single lines, ``file:line``; it counts before all that is known of their masks.
        base: the environment to add to; this process's own by default.

    Raises:
        CannotSimulateError: if the simulated runtime can't be built here.
    """
    environment = dict(os.environ if base is None else base)
    path = library()
    figures = {'key': device.key, **device.figures(), 'devices': devices, 'outside': outside, 'kept': kept}
    if values:
        figures['values'] = 1
    if kept_at:
        figures['kept_at'] = ','.join(f'{place}={part:g}' for place, part in kept_at.items())
    environment[VARIABLE] = as_variable(figures)
    # By its name, which is found in the folder: a path with a space can't be preloaded.
    environment['LD_PRELOAD'] = _before(environment.get('LD_PRELOAD'), path.name)
    environment['LD_LIBRARY_PATH'] = _before(environment.get('LD_LIBRARY_PATH'), path.parent)
    environment['TRITON_LIBCUDA_PATH'] = str(path.parent)
    compiler = compiler_for_triton(path)
    if compiler is not None:
        environment['CC'] = str(compiler)
    # Triton's products would be compiled by the dozen to be timed, and nothing here takes time
    for operation in ('GEMM', 'CONV'):
        environment.setdefault(f'TORCHINDUCTOR_MAX_AUTOTUNE_{operation}_BACKENDS', 'ATEN')
    environment['PYTHONPATH'] = _before(environment.get('PYTHONPATH'), _STARTUP)
    environment.pop('CUDA_VISIBLE_DEVICES', None)  # of the machine's own GPUs
    return environment


def _before(others: Optional[str], path: Path | str) -> str:
    return ':'.join(filter(None, [str(path), others]))
