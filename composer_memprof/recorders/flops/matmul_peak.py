"""The peak rate of a CPU, measured on matrix products."""

from __future__ import annotations

import functools
import time

import torch

from composer_memprof.recorders.torch_private import dispatch_modes

#: The modules of ``torch_private`` that this needs.
NEEDS = (dispatch_modes,)

#: A product that takes this long is large enough.
_LONG_S = 0.01
_LARGEST = 2048
_REPEATS = 12


def matmul_peak(dtype: torch.dtype) -> float:
    """FLOPs a second of the fastest square product in ``dtype``, with torch's current number of threads.

    Takes about 0.1 s, once in a process. It draws no random numbers and is invisible to dispatch modes.
    """
    return _measured(dtype, torch.get_num_threads())


@functools.cache
def _measured(dtype: torch.dtype, threads: int) -> float:
    best = 0.0
    size = 128
    with torch.no_grad(), dispatch_modes.disable_current_modes():
        while True:
            ones = torch.ones(size, size, dtype=dtype)
            out = torch.empty_like(ones)
            seconds = min(_seconds(ones, out) for _ in range(_REPEATS))
            best = max(best, 2 * size**3 / max(seconds, 1e-9))
            if seconds > _LONG_S or size >= _LARGEST:
                return best
            size *= 2


def _seconds(ones: torch.Tensor, out: torch.Tensor) -> float:
    begin = time.perf_counter()
    torch.mm(ones, ones, out=out)
    return time.perf_counter() - begin
