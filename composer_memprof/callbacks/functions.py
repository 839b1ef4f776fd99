"""The functions of a training run, from Composer's events: the batch, its phases, and those of evaluation."""

from __future__ import annotations

from composer.core import State
from composer.loggers import Logger

from composer_memprof.callbacks.base import ProfilingCallback

#: What a stage's batch is, as a function.
STEPS = {'train': 'training_step', 'eval': 'validation_step', 'predict': 'predict_step'}
#: All of them; forward, loss and backward come once a microbatch.
FUNCTIONS = (*STEPS.values(), 'dataloader', 'forward', 'loss', 'backward', 'optimizer_step')


class FunctionCallback(ProfilingCallback):
    """A callback that is told of each function as it begins and ends."""

    def _function_begins(self, function: str, state: State) -> None:
        """From here on ``function`` runs, inside of those that have begun before."""

    def _function_ends(self, function: str, state: State) -> None:
        """It has ended."""

    def before_dataloader(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._function_begins('dataloader', state)

    def after_dataloader(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._function_ends('dataloader', state)

    def batch_start(self, state: State, logger: Logger) -> None:
        super().batch_start(state, logger)
        self._function_begins('training_step', state)

    def before_forward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._function_begins('forward', state)

    def after_forward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._function_ends('forward', state)

    def before_loss(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._function_begins('loss', state)

    def after_loss(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._function_ends('loss', state)

    def before_backward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._function_begins('backward', state)

    def after_backward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._function_ends('backward', state)

    def after_train_batch(self, state: State, logger: Logger) -> None:
        # Composer runs forward and backward inside the optimizer's step; its own part begins here.
        del logger  # unused
        self._function_begins('optimizer_step', state)

    def batch_end(self, state: State, logger: Logger) -> None:
        self._function_ends('optimizer_step', state)
        self._function_ends('training_step', state)
        super().batch_end(state, logger)

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        super().eval_batch_start(state, logger)
        self._function_begins('validation_step', state)

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        self._function_ends('validation_step', state)
        super().eval_batch_end(state, logger)

    def predict_batch_start(self, state: State, logger: Logger) -> None:
        super().predict_batch_start(state, logger)
        self._function_begins('predict_step', state)

    def predict_batch_end(self, state: State, logger: Logger) -> None:
        self._function_ends('predict_step', state)
        super().predict_batch_end(state, logger)
