"""Cursors: a schedule bound to a clock, stepped batch by batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple


class BatchDecision(NamedTuple):
    """The cursor's decision for the batch about to start.

    Args:
        active (bool): record it.
        joined (bool): it continues the window of the batch before.
        warmup (bool): let the profiler warm up in it.
    """

    active: bool
    joined: bool = False
    warmup: bool = False


SKIP = BatchDecision(active=False)
WARM_UP = BatchDecision(active=False, warmup=True)
OPEN_WINDOW = BatchDecision(active=True)
CONTINUE_WINDOW = BatchDecision(active=True, joined=True)


class Cursor(ABC):
    """A schedule bound to a clock. Immutable: ``step`` returns the next cursor, so looking ahead has no side effects."""

    @abstractmethod
    def step(self, clock: Any) -> tuple[BatchDecision, Cursor]:
        """The decision for the batch that starts at the clock's time, and the cursor for the batch after it."""
