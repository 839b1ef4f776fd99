"""Composer's events of training, evaluation and prediction as the same few steps of a stage."""

from __future__ import annotations

from typing import Any

from composer.core import Callback, State
from composer.loggers import Logger


class StageEvents(Callback):
    """Calls the same methods for the batches of each stage, and for the passes of evaluation and prediction."""

    def _before_batch(self, stage: str, state: State) -> None:
        """A batch of ``stage`` begins."""

    def _after_batch(self, stage: str, state: State) -> None:
        """A batch of ``stage`` has ended."""

    def _after_epoch(self, state: State) -> None:
        """An epoch of training has ended."""

    def _start_pass(self, stage: str, state: State) -> None:
        """An evaluation or prediction begins."""

    def _end_pass(self, stage: str, state: State) -> None:
        """An evaluation or prediction has ended."""

    def _end_stage_batch(self, stage: str, state: State, timestamp: Any) -> None:
        """A batch of an evaluation or prediction has ended; ``timestamp`` counts this pass."""

    def batch_start(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._before_batch('train', state)

    def batch_end(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._after_batch('train', state)

    def epoch_end(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._after_epoch(state)

    def eval_start(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._start_pass('eval', state)

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._before_batch('eval', state)

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._end_stage_batch('eval', state, state.eval_timestamp)

    def eval_end(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._end_pass('eval', state)

    def predict_start(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._start_pass('predict', state)

    def predict_batch_start(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._before_batch('predict', state)

    def predict_batch_end(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._end_stage_batch('predict', state, state.predict_timestamp)

    def predict_end(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._end_pass('predict', state)
