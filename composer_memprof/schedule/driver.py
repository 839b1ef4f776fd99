"""Steps a schedule's cursor along one stage of one run."""

from __future__ import annotations

from typing import Optional

from composer.core import State

from composer_memprof.messages import log_error
from composer_memprof.schedule.base import Schedule
from composer_memprof.schedule.clocks import BatchClock, StageProgress
from composer_memprof.schedule.cursor import CONTINUE_WINDOW, SKIP, WARM_UP, BatchDecision
from composer_memprof.schedule.function import NoActionError
from composer_memprof.schedule.windows import WindowSchedule


class ScheduleDriver:
    """A schedule bound to one stage of one run. Call it before and after each batch.

    The schedule is asked once at each time of the clock, because a user's function may count how often it is called.

    Args:
        schedule (Schedule): which batches.
        clock (StageProgress): of the stage; ``skip`` counts from its time now.
        state (State, optional): gives the length of training, for ``dur``.

    Attributes:
        opened (int): how many windows it has opened.
    """

    def __init__(self, schedule: Schedule, clock: StageProgress, state: Optional[State]) -> None:
        self.schedule = schedule
        self.clock = clock
        self.opened = 0
        self._cursor = schedule.bind(clock, state)
        self._lookahead = _lookahead(schedule)
        self._counts_only_batches = schedule.counts_only_batches  # so there is no function in it
        self._decision, self._following = SKIP, self._cursor
        self._asked_at: object = None

    def check(self) -> None:
        """Before the first batch: refuse a function in the schedule that returns no action.

        Raises:
            ValueError: naming the function and what it returns.
        """
        try:
            self.next_batch()
        except NoActionError:
            raise
        except Exception:  # it may need a state that comes with the first batch
            log_error('the schedule function failed before the first batch')

    def before_batch(self) -> BatchDecision:
        """The decision for the batch about to start."""
        decision = self.next_batch()
        self._cursor = self._following
        if decision.active and not decision.joined:
            self.opened += 1
            self._decision = CONTINUE_WINDOW  # if the same batch is asked for again
        if self._lookahead and not decision.active:
            return WARM_UP if self._opens_soon() else SKIP
        return decision

    def is_over(self) -> bool:
        """After a batch or an epoch: True if the open window ends here."""
        return not self.next_batch().joined

    def next_batch(self) -> BatchDecision:
        """Between batches: the decision for the next one, as far as is known now."""
        moment = self.clock.moment
        if moment is not self._asked_at:
            self._decision, self._following = self._cursor.step(self.clock)
            self._asked_at = moment
        return self._decision

    def knows_next(self) -> bool:
        """True if :meth:`next_batch` calls no function of the user, who may count the calls."""
        return self._counts_only_batches or self.clock.moment is self._asked_at

    def _opens_soon(self) -> bool:
        clock = BatchClock(int(self.clock.read('ba')), self.clock.rank)
        cursor = self._cursor
        for _ in range(self._lookahead):
            clock.batch += 1
            decision, cursor = cursor.step(clock)
            if decision.active:
                return True
        return False


def _lookahead(schedule: Schedule) -> int:
    """The number of batches that a combination warms up before each of its windows: the longest warm-up of its parts.

    A part's own warm-up may come before batches that another part rules out. 0 for a schedule that is no combination,
    or that can't be stepped ahead.
    """
    parts = list(schedule.parts())
    if parts[0] is schedule or not schedule.counts_only_batches:
        return 0
    return int(max((part.warmup.value for part in parts if isinstance(part, WindowSchedule)), default=0))
