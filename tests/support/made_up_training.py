"""A training in batches of any sizes, and what a schedule records of it."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any

from composer.core import Time, Timestamp

from composer_memprof.schedule.clocks import TrainClock
from composer_memprof.schedule.driver import ScheduleDriver


class MadeUpRun:
    """A State that steps through batches of given sizes, ``epoch_length`` of them in an epoch."""

    def __init__(
        self, sizes: list[int], epoch_length: int = 10**9, start: int = 0, max_duration: str = '1000ba'
    ) -> None:
        self.sizes = sizes
        self.epoch_length = epoch_length
        self.start = start
        self.state: Any = SimpleNamespace(
            timestamp=self._timestamp(start),
            max_duration=Time.from_timestring(max_duration),
            dataloader_len=None,
            profiler=None,
        )

    def _timestamp(self, batch: int) -> Timestamp:
        done = sum(self.sizes[:batch])
        return Timestamp(
            epoch=batch // self.epoch_length,
            batch=batch,
            sample=done,
            token=done * 3,
            batch_in_epoch=batch % self.epoch_length,
            total_wct=datetime.timedelta(seconds=done),
        )

    def position(self, unit: str) -> float:
        return TrainClock(self.state).read(unit)

    def recordings(self, schedule: Any) -> list[list[int]]:
        """The batches of each recording, if a callback follows ``schedule`` through the events of Composer's Trainer."""
        self.state.timestamp = self._timestamp(self.start)
        driver = ScheduleDriver(schedule, TrainClock(self.state), self.state)
        recordings: list[list[int]] = []
        is_open = False
        for batch in range(self.start, len(self.sizes)):
            self.state.timestamp = self._timestamp(batch)
            decision = driver.before_batch()
            if is_open and not decision.joined:
                is_open = False
            if decision.active:
                if not is_open:
                    recordings.append([])
                is_open = True
                recordings[-1].append(batch)
            after = self._timestamp(batch + 1)
            # At BATCH_END the epoch stands still; it advances before EPOCH_END.
            self.state.timestamp = Timestamp(**{**after.state_dict(), 'epoch': batch // self.epoch_length})
            if is_open and driver.is_over():
                is_open = False
            self.state.timestamp = after
            if is_open and driver.is_over():
                is_open = False
        return recordings

    def boundaries(self, unit: str) -> list[float]:
        positions = []
        for batch in range(self.start, len(self.sizes) + 1):
            self.state.timestamp = self._timestamp(batch)
            positions.append(self.position(unit))
        self.state.timestamp = self._timestamp(self.start)
        return positions
