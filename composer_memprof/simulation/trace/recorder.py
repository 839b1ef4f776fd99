"""Within the simulated process: keeps what the clocks of streams and host pass, with the names of operators and modules."""

from __future__ import annotations

import dataclasses
from typing import Optional

import torch

from composer_memprof.recorders.modules.names import named_modules
from composer_memprof.simulated_gpu import clocks
from composer_memprof.simulated_gpu.clocks import Kind, TraceEvent
from composer_memprof.simulated_gpu.ranks.timing import COLLECTIVES


@dataclasses.dataclass(frozen=True)
class Span:
    """Something of the program that has a begin and an end, in seconds since the step began.

    Attributes:
        name: of a module or a phase.
        host: when the host came to it and left it.
        device: when the stream of the model's kernels came to what was launched in it, and was done with that.
    """

    name: str
    host: tuple[float, float]
    device: tuple[float, float]


@dataclasses.dataclass(frozen=True)
class StepTrace:
    """All events of a step.

    Attributes:
        seconds: of the step.
        stream: of the model's kernels, as events have it.
        events: with the numbers of ``names``.
        names: of operators.
        spans: modules whose forward ran and the optimizer.
    """

    seconds: float
    stream: int
    events: list[TraceEvent]
    names: list[str]
    spans: list[Span]

    def name_of(self, event: TraceEvent) -> str:
        """As torch's profiler would call it: by the operator, as Python does not know the kernel's own name."""
        if event.name < 0:
            return clocks.NAMES[event.name]
        return f'ncclDevKernel_{COLLECTIVES[event.name]}' if event.kind is Kind.COLLECTIVES else self.names[event.name]


class TraceRecorder:
    """Records from :meth:`start` to :meth:`stop`.

    Args:
        model: whose modules have names.
    """

    def __init__(self, model: Optional[torch.nn.Module]) -> None:
        self._modules = {} if model is None else {id(module): name or 'model' for name, module in named_modules(model)}
        self._names: dict[str, int] = {}
        self._open: list[tuple[str, tuple[float, float]]] = []
        self._spans: list[Span] = []

    def start(self) -> None:
        """The clocks have been started."""
        clocks.keep_trace(True)

    def stop(self, seconds: float) -> StepTrace:
        """The clocks will be stopped."""
        while self._open:
            self.ended()
        events = clocks.trace()
        clocks.keep_trace(False)
        stream = _stream()
        default = torch.cuda.current_device()
        return StepTrace(seconds, stream if stream > 2 else default, events, list(self._names), self._spans)

    def number_of(self, name: str) -> int:
        """What stands for an operator or a kernel in the runtime."""
        return self._names.setdefault(name, len(self._names))

    def entered(self, module: torch.nn.Module) -> None:
        self.began(self._modules.get(id(module), type(module).__name__))

    def began(self, name: str) -> None:
        """A module or a phase begins."""
        self._open.append((name, _now()))

    def ended(self) -> None:
        """The one that began last ends."""
        if self._open:
            name, began = self._open.pop()
            now = _now()
            self._spans.append(Span(name, (began[0], now[0]), (began[1], max(began[1], now[1]))))


def _now() -> tuple[float, float]:
    """Of the host, and of what it launches now on the current stream."""
    host, stream = clocks.host_and_stream(_stream())
    return host, max(host, stream)


def _stream() -> int:
    return torch.cuda.current_stream().cuda_stream
