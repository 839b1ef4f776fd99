"""The first fields of a report: which rank and which part of the run it is about."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


class Head:
    """The first fields of a report. Subclasses are dataclasses."""

    def as_dict(self) -> dict[str, Any]:
        """As written to JSON."""
        return asdict(self)  # type: ignore[call-overload]


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
