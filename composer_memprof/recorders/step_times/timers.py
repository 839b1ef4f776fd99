"""Timers: they mark points in time without waiting for a device."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Timer(Protocol):
    """Marks points in time. The time of a mark may become known later."""

    #: As written to records: ``host`` or ``cuda``.
    name: str

    def mark(self) -> Any:
        """Mark the current point in time."""

    def is_known(self, mark: Any) -> bool:
        """Whether the time of ``mark`` can be read without waiting."""

    def seconds(self, begin: Any, end: Any) -> float:
        """The time between two marks that are known."""


class HostTimer:
    """The clock of the host."""

    name = 'host'

    def mark(self) -> float:
        return time.perf_counter()

    def is_known(self, mark: float) -> bool:
        del mark  # always known
        return True

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class CudaTimer:
    """The time of the current CUDA device. A mark is an event on the current stream; nothing is synchronized."""

    name = 'cuda'

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def is_known(self, mark: torch.cuda.Event) -> bool:
        return bool(mark.query())

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return begin.elapsed_time(end) / 1000
