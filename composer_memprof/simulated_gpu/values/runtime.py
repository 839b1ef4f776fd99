"""What Python asks of the simulated runtime, which is preloaded, and tells it."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch


@functools.cache
def _library() -> Any:
    library = ctypes.CDLL(None)
    library.simulated_gpu_keep.argtypes = [ctypes.c_double]
    library.simulated_gpu_holds.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library


def is_there() -> bool:
    """Whether the process has the runtime; a script may have taken it away."""
    return hasattr(ctypes.CDLL(None), 'simulated_gpu_keep')


def holds(tensor: torch.Tensor) -> bool:
    """Whether the host would read what the runtime wrote for a kernel, or copied from the host since the last one."""
    return bool(_library().simulated_gpu_holds(tensor.data_ptr(), tensor.numel() * tensor.itemsize))


def keeping(share: float, run: Callable[[], Any]) -> Any:
    """Run an operator that counts, with this part of the elements counted; -1 leaves it to the runtime."""
    if share < 0:
        return run()
    _library().simulated_gpu_keep(share)
    try:
        return run()
    finally:
        _library().simulated_gpu_keep(-1.0)


def assumed(what: str) -> None:
    """Tell the user what the result rests on."""
    _library().simulated_gpu_assumed(what.encode())
