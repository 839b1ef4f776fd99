"""The phases of training, from Composer's events: dataloader, forward, backward, optimizer, eval, checkpoint."""

from __future__ import annotations

from composer.core import State
from composer.loggers import Logger

from composer_memprof.callbacks.framework.base import ProfilingCallback
from composer_memprof.callbacks.framework.hooks import of_recorder
from composer_memprof.vocabulary import (
    BACKWARD,
    BETWEEN_BATCHES,
    BETWEEN_PHASES,
    CHECKPOINT,
    DATALOADER,
    EVAL,
    EVAL_FORWARD,
    FORWARD,
    OPTIMIZER,
    PREDICT,
    PREDICT_FORWARD,
)

#: The phase between the batches of each stage.
BETWEEN = {'train': BETWEEN_BATCHES, 'eval': EVAL, 'predict': PREDICT}


class PhasedCallback(ProfilingCallback):
    """A callback with a hook for the start of each phase."""

    def _phase_begins(self, phase: str, state: State) -> None:
        """``phase``, one of the vocabulary's, starts now."""

    @of_recorder
    def epoch_start(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins(BETWEEN_BATCHES, state)  # a DataLoader starts its workers now

    @of_recorder
    def before_dataloader(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins(DATALOADER, state)

    @of_recorder
    def after_dataloader(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins(BETWEEN_PHASES, state)

    @of_recorder
    def before_forward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins(FORWARD, state)

    @of_recorder
    def before_backward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins(BACKWARD, state)

    @of_recorder
    def after_backward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins(BETWEEN_PHASES, state)

    @of_recorder
    def after_train_batch(self, state: State, logger: Logger) -> None:
        del logger  # unused
        # Composer runs forward and backward inside optimizer.step(); the update itself begins here.
        self._phase_begins(OPTIMIZER, state)

    @of_recorder
    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins(CHECKPOINT, state)

    @of_recorder
    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins(CHECKPOINT, state)

    def eval_start(self, state: State, logger: Logger) -> None:
        self._phase_begins(EVAL, state)
        super().eval_start(state, logger)

    def eval_end(self, state: State, logger: Logger) -> None:
        super().eval_end(state, logger)
        self._phase_begins(BETWEEN_BATCHES, state)


class StagePhasedCallback(PhasedCallback):
    """Tells the forward of an evaluation or a prediction from the rest of it."""

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        super().eval_batch_start(state, logger)
        self._phase_begins(EVAL, state)

    @of_recorder
    def eval_before_forward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins(EVAL_FORWARD, state)

    @of_recorder
    def eval_after_forward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins(EVAL, state)

    def predict_start(self, state: State, logger: Logger) -> None:
        self._phase_begins(PREDICT, state)
        super().predict_start(state, logger)

    def predict_batch_start(self, state: State, logger: Logger) -> None:
        super().predict_batch_start(state, logger)
        self._phase_begins(PREDICT, state)

    @of_recorder
    def predict_before_forward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins(PREDICT_FORWARD, state)

    @of_recorder
    def predict_after_forward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins(PREDICT, state)

    def predict_end(self, state: State, logger: Logger) -> None:
        super().predict_end(state, logger)
        self._phase_begins(BETWEEN_BATCHES, state)
