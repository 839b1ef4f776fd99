"""The peak FLOPs per second of the device that a model trains on."""

from __future__ import annotations

import platform
import warnings
from types import SimpleNamespace
from typing import Any, Optional

import torch
from composer.callbacks.speed_monitor import get_gpu_flops_available
from composer.core import Precision, State

from composer_memprof.analysis.flops.summary import DevicePeak
from composer_memprof.recorders.flops.matmul_peak import matmul_peak

_REDUCED_DTYPES = {Precision.AMP_BF16: torch.bfloat16, Precision.AMP_FP16: torch.float16}


def find_peak(state: State, given: Optional[float]) -> DevicePeak:
    """The user's value, else Composer's value for this GPU; on a CPU, measured in about 0.1 s.

    Args:
        state (State): of the Trainer, with model, device and precision.
        given (float, optional): the user's value, FLOPs per second.
    """
    name = device_name(state)
    if given is not None:
        return DevicePeak(name, float(given), 'peak_flops, as given')
    if state.device.name == 'cpu':
        dtype = _REDUCED_DTYPES.get(state.precision) or _dtype_of(state.model)
        short, threads = str(dtype).removeprefix('torch.'), torch.get_num_threads()
        return DevicePeak(name, matmul_peak(dtype), f'measured: matrix products in {short} on {threads} threads')
    precision = state.precision.value
    if precision == 'fp32' and torch.backends.cuda.matmul.allow_tf32:
        tf32_flops = _composer_peak('tf32')
        if tf32_flops:
            return DevicePeak(name, tf32_flops, "Composer's table of GPUs, at tf32")
    flops = _composer_peak(precision)
    return DevicePeak(name, flops or None, f"Composer's table of GPUs, at {precision}")


def device_name(state: State) -> str:
    """The name of the GPU or CPU model, else Composer's name of the device."""
    if state.device.name == 'gpu':
        return torch.cuda.get_device_name()
    return platform.processor() or platform.machine() if state.device.name == 'cpu' else state.device.name


def _composer_peak(precision: str) -> float:
    """FLOPs per second in Composer's table of GPUs; 0 if the table lacks the GPU or the precision."""
    state: Any = SimpleNamespace(precision=SimpleNamespace(value=precision))  # all that the function reads
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # Flops has a warning of its own for an unknown peak
        return float(get_gpu_flops_available(state))


def _dtype_of(model: torch.nn.Module) -> torch.dtype:
    return next((each.dtype for each in model.parameters() if each.is_floating_point()), torch.float32)
