"""The first fields of a report: which rank and which part of the run it is about."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from composer_memprof.simulated_gpu.this_process import simulated_device


class Head:
    """The first fields of a report. Subclasses are dataclasses."""

    def as_dict(self) -> dict[str, Any]:
        """As written to JSON; with the key ``simulated`` on a simulated GPU, and only there."""
        device = simulated_device()
        return {**asdict(self), **({} if device is None else {'simulated': device})}  # type: ignore[call-overload]


@dataclass(frozen=True)
class WindowHead(Head):
    """The rank, and the epoch and batch at which the window ended."""

    rank: int
    epoch: int
    batch: int


@dataclass(frozen=True)
class StageHead(WindowHead):
    """A window of one stage: ``train``, ``eval`` or ``predict``."""

    stage: str


@dataclass(frozen=True)
class CallHead(Head):
    """The ``iteration``-th call of a function, counted from 1."""

    rank: int
    function: str
    iteration: int
