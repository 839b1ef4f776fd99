"""Clocks: the progress of a stage of a run, in any unit of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Protocol

from composer.core import State
from composer.utils import dist


class Clock(Protocol):
    """The progress of one stage of a run. ``read(unit)`` counts in that unit from the beginning of the run."""

    rank: int

    def read(self, unit: str) -> float: ...


class StageProgress(Clock, Protocol):
    """A clock that shows whether it has moved."""

    @property
    def moment(self) -> object:
        """The same object as long as the clock stands still."""


class TrainClock:
    """The clock of the train stage: Composer's own timestamp."""

    __slots__ = ('rank', 'state')

    def __init__(self, state: State) -> None:
        self.state = state
        self.rank = dist.get_global_rank()

    @property
    def moment(self) -> object:
        return self.state.timestamp

    def read(self, unit: str) -> float:
        timestamp = self.state.timestamp
        if unit == 'ba':
            return timestamp.batch.value
        if unit == 'sec':
            return timestamp.total_wct.total_seconds()
        return timestamp.get(unit).value


class StageClock:
    """The clock of the eval or predict stage over the whole run.

    Composer's own counters restart with every pass over the data. ``ep`` and ``iter`` count passes here.
    """

    __slots__ = ('_before_pass', '_totals', 'moment', 'rank', 'state')

    def __init__(self, state: State) -> None:
        self.state = state
        self.rank = dist.get_global_rank()
        self._totals: dict[str, float] = {'ep': 0, 'ba': 0, 'sp': 0, 'tok': 0, 'sec': 0}
        self._before_pass = dict(self._totals)
        self.moment = object()

    def start_pass(self) -> None:
        self.moment = object()
        self._before_pass = dict(self._totals)

    def end_batch(self, timestamp: Any) -> None:
        """Advance to the current pass's ``timestamp`` after a batch."""
        self.moment = object()
        before = self._before_pass
        self._totals['ba'] = before['ba'] + timestamp.batch.value
        self._totals['sp'] = before['sp'] + timestamp.sample.value
        self._totals['tok'] = before['tok'] + timestamp.token.value
        self._totals['sec'] = before['sec'] + timestamp.total_wct.total_seconds()

    def end_pass(self) -> None:
        self.moment = object()
        self._totals['ep'] += 1

    def read(self, unit: str) -> float:
        return self._totals['ep' if unit == 'iter' else unit]


@dataclass
class BatchClock:
    """A clock that has only batches, to step through a schedule ahead of a run or without one.

    ``local_rank``: of ``rank`` in its node, if that may differ from this run's.
    """

    batch: int
    rank: int
    local_rank: Optional[int] = None

    def read(self, unit: str) -> float:
        if unit != 'ba':
            raise ValueError(f'only batches can be counted ahead of a run, not {unit}')
        return self.batch


@dataclass
class ZeroClock:
    """The clock at the beginning of a run."""

    rank: int

    def read(self, unit: str) -> float:
        del unit
        return 0


class BatchStartClock:
    """``clock`` when the batch about to start starts, or the one ``ahead`` of it.

    At the end of an epoch's last batch the clock's own epoch still stands, and the next batch is of the next epoch. The
    samples, tokens and seconds of batches ahead are not known, so they are left out.

    Args:
        clock (TrainClock): at the end of a batch, or later.
        epoch_length (int, optional): batches in an epoch, if that is known.
        ahead (int): 0 for the batch about to start.
    """

    def __init__(self, clock: TrainClock, epoch_length: Optional[int], ahead: int = 0) -> None:
        self.rank = clock.rank
        self.state = clock.state
        self._clock = clock
        self._epoch_length = epoch_length
        self._ahead = ahead

    def read(self, unit: str) -> float:
        value = self._clock.read(unit)
        if unit == 'ba':
            return value + self._ahead
        if unit == 'ep' and self._epoch_length:
            return value + (self.state.timestamp.batch_in_epoch.value + self._ahead) // self._epoch_length
        return value

    def following(self) -> BatchStartClock:
        """The clock one batch later."""
        return BatchStartClock(self._clock, self._epoch_length, self._ahead + 1)
