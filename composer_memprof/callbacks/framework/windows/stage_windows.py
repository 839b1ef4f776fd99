"""The windows of one run: the schedule bound to the clock of each stage that is recorded."""

from __future__ import annotations

from typing import Any

from composer.core import State
from composer.utils import dist

from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.callbacks.framework.options import When
from composer_memprof.callbacks.framework.run_names import run_name_of
from composer_memprof.schedule import Schedule
from composer_memprof.schedule.clocks import StageClock, TrainClock
from composer_memprof.schedule.cursor import BatchDecision
from composer_memprof.schedule.driver import ScheduleDriver
from composer_memprof.schedule.function import check_functions


class StageWindows:
    """Walks a schedule through the batches of each stage, on this rank.

    Args:
        when (When): the schedule, and the stages and ranks that record.
    """

    def __init__(self, when: When) -> None:
        self._when = when
        self._stages: dict[str, ScheduleDriver] = {}

    def __contains__(self, stage: str) -> bool:
        """Whether ``stage`` is recorded here and has begun."""
        return stage in self._stages

    def start_training(self, state: State) -> bool:
        """Count from here. Returns whether training is recorded on this rank.

        Raises:
            ValueError: for a function in the schedule that returns no action, on every rank.
        """
        if not self._is_recorded('train'):
            check_functions(self._when.schedule, state)
            return False
        self._stages['train'] = ScheduleDriver(self._when.schedule, TrainClock(state), state)
        self._stages['train'].check()
        return True

    def start_pass(self, stage: str, state: State) -> None:
        """An evaluation or prediction begins; its batches are counted over the whole run."""
        if not self._is_recorded(stage):
            return
        if stage not in self._stages:
            self._stages[stage] = ScheduleDriver(self._when.schedule, StageClock(state), state)
        self._clock(stage).start_pass()

    def end_batch(self, stage: str, timestamp: Any) -> None:
        """A batch of an evaluation or prediction has ended."""
        self._clock(stage).end_batch(timestamp)

    def end_pass(self, stage: str) -> None:
        """An evaluation or prediction has ended."""
        self._clock(stage).end_pass()

    def before_batch(self, stage: str) -> BatchDecision:
        """What the schedule wants of the batch about to start."""
        return self._stages[stage].before_batch()

    def is_over(self, stage: str) -> bool:
        """After a batch or an epoch: whether the open window ends here."""
        return self._stages[stage].is_over()

    def next_batch(self, stage: str) -> BatchDecision:
        """Between batches: what the schedule wants of the next one, as far as is known now."""
        return self._stages[stage].next_batch()

    def knows_next(self, stage: str) -> bool:
        """Whether :meth:`next_batch` calls no function of the user, who may count the calls."""
        return self._stages[stage].knows_next()

    def has_opened(self, stage: str) -> bool:
        """Whether any window of ``stage`` was reached."""
        return self._stages[stage].opened > 0

    def postpone(self, stage: str, schedule: Schedule, state: State) -> None:
        """Go on with ``schedule`` from here."""
        self._stages[stage] = ScheduleDriver(schedule, self._stages[stage].clock, state)

    def count(self, stage: str) -> int:
        """The batches of ``stage`` done so far; of evaluation and prediction over the whole run."""
        return int(self._stages[stage].clock.read('ba'))

    def stamp(self, stage: str, state: State) -> Stamp:
        """The time in the names of a window's files; outside of training also the count of the stage's batches."""
        mark = '' if stage == 'train' else f'.{stage}{self.count(stage)}'
        return Stamp(run_name_of(state), state.timestamp, mark)

    def _is_recorded(self, stage: str) -> bool:
        return stage in self._when.stages and self._when.may_run_on(dist.get_global_rank())

    def _clock(self, stage: str) -> StageClock:
        clock = self._stages[stage].clock
        assert isinstance(clock, StageClock)
        return clock
