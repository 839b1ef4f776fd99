"""What the device that a model trains on can do at most."""

from __future__ import annotations

import platform
import warnings
from types import SimpleNamespace
from typing import Any, Optional

import torch
from composer.callbacks.speed_monitor import get_gpu_flops_available
from composer.core import Precision, State

from composer_memprof.analysis.flops.utilization import Peak
from composer_memprof.recorders.flops.matmul_peak import matmul_peak

_REDUCED = {Precision.AMP_BF16: torch.bfloat16, Precision.AMP_FP16: torch.float16}


def find_peak(state: State, given: Optional[float]) -> Peak:
    """As the user gave it, from Composer's table of GPUs, or measured on a CPU, which takes a tenth of a second."""
    name = device_name(state)
    if given is not None:
        return Peak(name, float(given), 'peak_flops, as given')
    if state.device.name == 'cpu':
        dtype = _REDUCED.get(state.precision) or _dtype_of(state.model)
        short, threads = str(dtype).removeprefix('torch.'), torch.get_num_threads()
        return Peak(name, matmul_peak(dtype), f'measured: matrix products in {short} on {threads} threads')
    precision = state.precision.value
    if precision == 'fp32' and torch.backends.cuda.matmul.allow_tf32:
        in_tf32 = _of_table('tf32')
        if in_tf32:
            return Peak(name, in_tf32, "Composer's table of GPUs, at tf32")
    flops = _of_table(precision)
    return Peak(name, flops or None, f"Composer's table of GPUs, at {precision}")


def device_name(state: State) -> str:
    if state.device.name == 'gpu':
        return torch.cuda.get_device_name()
    return platform.processor() or platform.machine() if state.device.name == 'cpu' else state.device.name


def _of_table(precision: str) -> float:
    stand_in: Any = SimpleNamespace(precision=SimpleNamespace(value=precision))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # where it has no figure, we say so in our own words
        return float(get_gpu_flops_available(stand_in))


def _dtype_of(model: torch.nn.Module) -> torch.dtype:
    return next((each.dtype for each in model.parameters() if each.is_floating_point()), torch.float32)
