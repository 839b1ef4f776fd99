"""The schedule ``ALWAYS``, and the cursor of all schedules with the same decision for every batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

from composer.core import State

from composer_memprof.schedule.base import Schedule
from composer_memprof.schedule.clocks import Clock
from composer_memprof.schedule.cursor import CONTINUE_WINDOW, OPEN_WINDOW, SKIP, BatchDecision, Cursor
from composer_memprof.schedule.spans import Span


@dataclass(frozen=True)
class Always(Schedule):
    """One window as long as the run."""

    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        del clock, state
        return ConstantCursor(True)

    def spans(self) -> Iterator[Span]:
        return iter(())

    @property
    def ends_by_itself(self) -> bool:
        return False


ALWAYS: Schedule = Always()


@dataclass(frozen=True)
class ConstantCursor(Cursor):
    active: bool
    is_open: bool = False

    def step(self, clock: Clock) -> tuple[BatchDecision, Cursor]:
        del clock
        if not self.active:
            return SKIP, self
        return (CONTINUE_WINDOW, self) if self.is_open else (OPEN_WINDOW, ConstantCursor(True, is_open=True))
