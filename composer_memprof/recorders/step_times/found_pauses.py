"""What was found of the pauses of a training. Needs no torch: reports read it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Compiled:
    """A function that torch.compile compiled more than once, by the end of a recording.

    Args:
        function (str): its file, line and name: ``model.py:12 forward``.
        times (int): how often it was compiled again within the recording.
        seconds (float): that it took.
        reason (str): of the last time, as torch says it.
    """

    function: str
    times: int
    seconds: float
    reason: str


@dataclass(frozen=True)
class FoundPauses:
    """The pauses of a recording.

    Args:
        collections (int): collections of Python's oldest generation, which visit every object.
        collecting (float): seconds of all collections.
        compiled (list[Compiled]): that were compiled again, the slowest first; at most three.
    """

    collections: int = 0
    collecting: float = 0.0
    compiled: list[Compiled] = field(default_factory=list)
