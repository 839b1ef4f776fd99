"""What a CPU can do at most: the rate of matrix products, measured."""

from __future__ import annotations

import time

import torch
from torch.utils._python_dispatch import _disable_current_modes

#: A product that takes so long is large enough.
_LONG_S = 0.01
_LARGEST = 2048
_REPEATS = 12


def matmul_peak(dtype: torch.dtype) -> float:
    """FLOPs a second of the fastest square product in ``dtype``, with torch's present number of threads.

    Takes about a tenth of a second, and neither random numbers nor anyone's attention.
    """
    best = 0.0
    size = 128
    with torch.no_grad(), _disable_current_modes():
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
