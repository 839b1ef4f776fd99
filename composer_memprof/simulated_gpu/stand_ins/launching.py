"""Kernels of stand-ins: one operator that reads tensors, writes others, and allocates nothing."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import torch

from composer_memprof.simulated_gpu.this_process import simulated_device

_library = torch.library.Library('simulated_gpu', 'DEF')
_library.define('kernel(Tensor[] read, Tensor(a!)[] written) -> ()')


@functools.cache
def stands_in(module: str, package: str) -> None:
    """Note for the verdict that a stand-in was used, once in a process.

    Args:
        module: what was imported.
        package: that it stands for, with its version.

    Raises:
        RuntimeError: on a real GPU, where a stand-in would compute nothing.
    """
    if simulated_device() is None:
        raise RuntimeError(f'{module} is a stand-in, which allocates and computes nothing: install {package}')
    note = f'{module} is not installed: a stand-in allocated what {package} allocates'
    ctypes.CDLL(None).simulated_gpu_assumed(note.encode())


def launch(read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
    """Launch a kernel that goes once through these tensors."""
    torch.ops.simulated_gpu.kernel(read, written)


def start(written: Sequence[torch.Tensor]) -> None:
    """Launch a kernel within an operator: one element is written, in place of all."""
    for tensor in written:
        if tensor.numel():
            tensor.data.as_strided((1,), (1,)).fill_(0)  # data: no new version for autograd
            return


def _kernel(read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
    start(written)


def _kernel_without_data(read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
    """For tracing: nothing is returned, so that no shape follows."""


_library.impl('kernel', _kernel, 'CUDA')
_library.impl('kernel', _kernel_without_data, 'Meta')
