"""When collectives end, while the clocks of the simulated runtime run.

All ranks are taken to reach a collective at the same time. As NCCL's, it runs on a stream of its group, after what the
caller's stream has to do; a stream that waits for the work goes on when it has ended.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Optional

import torch

from composer_memprof.simulated_gpu import clocks
from composer_memprof.simulated_gpu.calibration import factors_of_this_process
from composer_memprof.simulated_gpu.durations.collectives import collective_seconds

#: Their numbers are their names in a trace.
COLLECTIVES = (
    'all_reduce',
    'reduce',
    'broadcast',
    'all_gather',
    'gather',
    'scatter',
    'reduce_scatter',
    'all_to_all',
    'send',
)


def end_of_collective(
    name: str, group: int, ranks: int, tensors: Sequence[torch.Tensor], times: float, between_nodes: bool
) -> Optional[float]:
    """Put a collective on the stream of its group. Returns its end; None if no clock runs or it is not on a device.

    Args:
        name: of the collective.
        group: its number.
        tensors: this rank's own.
        times: how often a rank sends the bytes of these.
    """
    rates = clocks.running()
    if rates is None or not any(tensor.is_cuda for tensor in tensors):
        return None
    sent = times * sum(tensor.nbytes for tensor in tensors)
    seconds = collective_seconds(rates, sent, ranks, between_nodes) * factors_of_this_process().collectives
    return clocks.collective(group, _stream(), seconds, COLLECTIVES.index(name))


def wait(end: Optional[float]) -> None:
    """Let the current stream wait for the end of a collective."""
    if end is not None and clocks.running() is not None:
        clocks.wait(_stream(), end)


@contextlib.contextmanager
def waited_for(end: Optional[float]) -> Iterator[None]:
    """What is recorded within the block on the current stream has the time of a collective's end."""
    if end is None or clocks.running() is None:
        yield
        return
    with torch.cuda.stream(_side_stream()):
        wait(end)
        yield


def _stream() -> int:
    return torch.cuda.current_stream().cuda_stream


@functools.cache
def _side_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()
