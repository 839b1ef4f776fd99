"""The clocks of the simulated runtime, as Python sees them: how much time would have passed on each stream.

They run between :func:`start` and :func:`stop`, and know how long a kernel takes from :func:`took` alone.
"""

from __future__ import annotations

import ctypes
import enum
import functools
from typing import Any, Optional

from composer_memprof.simulated_gpu import rates as constants
from composer_memprof.simulated_gpu.rates import Rates


class Kind(enum.IntEnum):
    """What a stream's time is spent on, in the order of ``simulated_gpu.h``."""

    OTHER_KERNELS = 0
    PRODUCTS = 1
    ATTENTION = 2
    OPTIMIZER = 3
    COLLECTIVES = 4
    COPIES = 5
    WAITING_FOR_STREAMS = 6
    WAITING_FOR_HOST = 7


_rates: Optional[Rates] = None


def running() -> Optional[Rates]:
    """The rates of the device while the clocks run, else None."""
    return _rates


def start(rates: Rates) -> None:
    """Let the clocks run, all from the same moment on. The device's memory does not end from now on: to listen to
    operators changes what torch allocates a little, so that no memory is judged while they run.
    """
    global _rates
    _rates = rates
    _runtime().simulated_gpu_lift_limit()
    memory = rates.memory * constants.MEMORY_REACHED
    _runtime().simulated_gpu_time(1, constants.LAUNCH, constants.KERNEL, rates.bus, memory)


def stop() -> None:
    """Let them stand still."""
    global _rates
    _rates = None
    _runtime().simulated_gpu_time(0, 0.0, 0.0, 1.0, 1.0)


def launches() -> int:
    """What this thread has launched since the last :func:`took`."""
    return int(_runtime().simulated_gpu_launches())


def took(seconds: float, kind: Kind) -> None:
    """What was launched since the last call takes so long together; without a launch nothing does."""
    _runtime().simulated_gpu_took(seconds, kind)


def collective(group: int, stream: int, seconds: float) -> float:
    """Put a collective on the stream of a group, after what was launched on a stream. Returns when it ends."""
    return float(_runtime().simulated_gpu_collective(group, stream, seconds))


def wait(stream: int, end: float) -> None:
    """Let a stream wait for the end of a collective."""
    _runtime().simulated_gpu_wait(stream, end)


def elapsed() -> float:
    """Seconds since the clocks were started, to the end of all that was launched."""
    return float(_runtime().simulated_gpu_elapsed())


def spent(stream: int) -> dict[Kind, float]:
    """What a stream's seconds were spent on."""
    return {kind: float(_runtime().simulated_gpu_spent(stream, kind)) for kind in Kind}


def counts() -> tuple[int, int]:
    """How many kernels were launched, and how many of them by no operator that is known."""
    return int(_runtime().simulated_gpu_count(0)), int(_runtime().simulated_gpu_count(1))


@functools.cache
def _runtime() -> Any:
    runtime = ctypes.CDLL(None)
    number, real, address = ctypes.c_int, ctypes.c_double, ctypes.c_void_p
    for name, arguments, result in (
        ('time', [number, real, real, real, real], None),
        ('launches', [], number),
        ('lift_limit', [], None),
        ('took', [real, number], None),
        ('collective', [number, address, real], real),
        ('wait', [address, real], None),
        ('elapsed', [], real),
        ('spent', [address, number], real),
        ('count', [number], ctypes.c_long),
    ):
        function = getattr(runtime, f'simulated_gpu_{name}')
        function.argtypes, function.restype = arguments, result
    return runtime
