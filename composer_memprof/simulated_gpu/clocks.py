"""The clocks of the simulated runtime, as Python sees them: how much time would have passed on each stream.

They run between :func:`start` and :func:`stop`, and know how long a kernel takes from :func:`of_operators` alone.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import functools
from collections.abc import Callable
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


def start(rates: Rates, launch: float = 1.0, copies: float = 1.0) -> None:
    """Let the clocks run, all from the same moment on. The device's memory does not end from now on: to listen to
    operators changes what torch allocates a little, so that no memory is judged while they run.

    Args:
        launch: how many times as long the host takes for a launch and for an operator.
        copies: how many times as long copies between host and device take.
    """
    global _rates
    _rates = rates
    _runtime().simulated_gpu_lift_limit()
    memory = rates.memory * constants.MEMORY_REACHED
    host = launch * constants.LAUNCH, launch * constants.OPERATOR
    _runtime().simulated_gpu_time(1, *host, constants.KERNEL, rates.bus / copies, memory)


def stop() -> None:
    """Let them stand still."""
    global _rates
    _rates = None
    _runtime().simulated_gpu_time(0, 0.0, 0.0, 0.0, 1.0, 1.0)


def of_operators() -> tuple[Callable[[], int], Callable[[float, int, int], None], Callable[[float, int, int], None]]:
    """Three functions of the runtime: the first and one of the others are called after each operator.

    The first one says how many kernels this thread has launched since the last call of one of the others. The second one,
    for an operator of torch, and the third one, for a kernel that was launched by itself, are told how many seconds these
    take together, their :class:`Kind`, and for a trace a number that the caller knows; without a launch they do nothing.
    """
    runtime = _runtime()
    return runtime.simulated_gpu_launches, runtime.simulated_gpu_operated, runtime.simulated_gpu_took


def collective(group: int, stream: int, seconds: float, name: int = 0) -> float:
    """Put a collective on the stream of a group, after what was launched on a stream. Returns when it ends."""
    return float(_runtime().simulated_gpu_collective(group, stream, seconds, name))


def wait(stream: int, end: float) -> None:
    """Let a stream wait for the end of a collective."""
    _runtime().simulated_gpu_wait(stream, end)


def elapsed() -> float:
    """Seconds since the clocks were started, to the end of all that was launched."""
    return float(_runtime().simulated_gpu_elapsed())


def spent(stream: int) -> dict[Kind, float]:
    """What a stream's seconds were spent on."""
    return {kind: float(_runtime().simulated_gpu_spent(stream, kind)) for kind in Kind}


def host_and_stream(stream: int) -> tuple[float, float]:
    """What the clock of the host and of a stream show, in seconds since they were started."""
    return float(_runtime().simulated_gpu_host()), float(_runtime().simulated_gpu_now(stream))


def counts() -> tuple[int, int]:
    """How many kernels were launched, and how many of them by no operator that is known."""
    return int(_runtime().simulated_gpu_count(0)), int(_runtime().simulated_gpu_count(1))


class _Event(ctypes.Structure):
    """As in ``trace.c``."""

    _fields_ = (
        ('stream', ctypes.c_longlong),
        *((name, ctypes.c_double) for name in ('start', 'seconds', 'host_start', 'host_seconds')),
        *((name, ctypes.c_int) for name in ('kind', 'name', 'launches', 'waits_for_its_operator')),
    )


@dataclasses.dataclass(frozen=True)
class TraceEvent:
    """Something that a stream or the host did. Times are in seconds since the clocks were started.

    Attributes:
        stream: its address, the device's number for a default stream, below 0 for a group of ranks.
        start: on the stream.
        seconds: on the stream.
        host_start: of its launch.
        host_seconds: of its launch.
        kind: what the time is spent on.
        name: as the functions of :func:`of_operators` and :func:`collective` were told; below 0 one of :data:`NAMES`.
        launches: kernels; 0 if the host waits for the device.
    """

    stream: int
    start: float
    seconds: float
    host_start: float
    host_seconds: float
    kind: Kind
    name: int
    launches: int


#: The names of what Python does not see.
NAMES = {
    -1: 'kernel outside of operators',
    -2: 'Memcpy HtoD',
    -3: 'Memcpy DtoH',
    -4: 'Memcpy DtoD',
    -5: 'Memset',
    -6: 'the host waits for the device',
}


def keep_trace(keep: bool) -> None:
    """Keep events from now on, or forget them."""
    _runtime().simulated_gpu_keep_trace(keep)


def trace() -> list[TraceEvent]:
    """The events since :func:`keep_trace`."""
    count = _runtime().simulated_gpu_trace_count()
    if not count:
        return []
    beginning = float(_runtime().simulated_gpu_beginning())
    return [
        TraceEvent(
            each.stream,
            each.start - beginning,
            each.seconds,
            each.host_start - beginning,
            each.host_seconds,
            Kind(each.kind),
            each.name,
            each.launches,
        )
        for each in (_Event * count).from_address(_runtime().simulated_gpu_trace_events())
    ]


@functools.cache
def _runtime() -> Any:
    runtime = ctypes.CDLL(None)
    number, real, address = ctypes.c_int, ctypes.c_double, ctypes.c_void_p
    for name, arguments, result in (
        ('time', [number, real, real, real, real, real], None),
        ('launches', [], number),
        ('lift_limit', [], None),
        ('took', [real, number, number], None),
        ('operated', [real, number, number], None),
        ('collective', [number, address, real, number], real),
        ('host', [], real),
        ('now', [address], real),
        ('beginning', [], real),
        ('keep_trace', [number], None),
        ('trace_count', [], number),
        ('trace_events', [], address),
        ('wait', [address, real], None),
        ('elapsed', [], real),
        ('spent', [address, number], real),
        ('count', [number], ctypes.c_long),
    ):
        function = getattr(runtime, f'simulated_gpu_{name}')
        function.argtypes, function.restype = arguments, result
    return runtime
