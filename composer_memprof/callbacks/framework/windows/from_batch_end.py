"""Windows that begin where the batch before them ended, so that they contain how their first batch was loaded."""

from __future__ import annotations

from abc import abstractmethod
from typing import Optional

from composer.core import State
from composer.loggers import Logger

from composer_memprof.callbacks.framework.base import ProfilingCallback
from composer_memprof.callbacks.framework.life import IDLE, RECORDING, WARMING_UP
from composer_memprof.signals import uninterrupted


class RecordsFromBatchEnd(ProfilingCallback):
    """A callback whose recorder starts as soon as the next batch is known to be recorded.

    That is at the end of the batch before, at the end or start of an epoch, or just before the batch is loaded. Until
    the batch begins, the callback counts as warming up: an evaluation that comes first ends the recording, and it
    starts again after the evaluation.
    """

    _early: Optional[str] = None  # the stage that the recorder has been started for before its batch

    @abstractmethod
    def _start_early(self, state: State) -> None:
        """Start to record before the window's first batch begins; :meth:`_start` follows, or :meth:`_cancel`."""

    def _next_batch_awaited(self, stage: str) -> None:
        """The next batch of ``stage`` is recorded; what happens from now on leads to it."""

    def epoch_start(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._between_batches('train', state)

    def before_dataloader(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._between_batches('train', state)

    def _before_batch(self, stage: str, state: State) -> None:
        super()._before_batch(stage, state)
        self._early = None

    def _after_batch(self, stage: str, state: State) -> None:
        super()._after_batch(stage, state)
        self._between_batches(stage, state)

    def _after_epoch(self, state: State) -> None:
        super()._after_epoch(state)
        self._between_batches('train', state)

    def _start_pass(self, stage: str, state: State) -> None:
        self._stop_early()
        super()._start_pass(stage, state)
        self._between_batches(stage, state)

    def _end_pass(self, stage: str, state: State) -> None:
        super()._end_pass(stage, state)
        self._stop_early()

    def _between_batches(self, stage: str, state: State) -> None:
        if stage not in self._windows:
            return
        if self._life is RECORDING:
            if self._stage == stage and _a_batch_follows(stage, state):
                self._next_batch_awaited(stage)
        elif self._early is None and self._next_is_active(stage, state) and self._may_start(stage, state):
            with uninterrupted():
                if self._life is IDLE:
                    self._warm_up(state)
                self._early = stage
                self._start_early(state)
                self._next_batch_awaited(stage)

    def _may_start(self, stage: str, state: State) -> bool:
        """Whether the window can be recorded. What is in the way now may be gone when its batch begins."""
        if self._life not in (IDLE, WARMING_UP) or self._folder_lost:
            return False
        return _a_batch_follows(stage, state) and self._find_obstacle(state) is None

    def _next_is_active(self, stage: str, state: State) -> bool:
        # At the end of an epoch or of training the schedule is not asked: a user's function may count its calls.
        if not self._windows.knows_next(stage) and not _a_batch_follows(stage, state):
            return False
        return self._windows.next_batch(stage).active

    def _stop_early(self) -> None:
        if self._early is not None:
            self._cancel_warmup()

    def _cancel(self) -> None:
        self._early = None


def _a_batch_follows(stage: str, state: State) -> bool:
    """Whether another batch follows in this epoch or pass, as far as is known before the next one is loaded."""
    if stage == 'train':
        if state.max_duration is not None and state.timestamp >= state.max_duration:
            return False
        done = state.timestamp.batch_in_epoch
    else:
        done = (state.eval_timestamp if stage == 'eval' else state.predict_timestamp).batch_in_epoch
    return state.dataloader_len is None or done < state.dataloader_len
