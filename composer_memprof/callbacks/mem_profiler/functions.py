"""Training as functions, from Composer's events: the steps of each stage, and the phases of a training step."""

from __future__ import annotations

from typing import Optional

from composer.core import State
from composer.loggers import Logger

from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.callbacks.framework.base import ProfilingCallback
from composer_memprof.recorders.functions.recorder import FunctionMemoryRecorder
from composer_memprof.recorders.functions.source import FunctionCall
from composer_memprof.recorders.functions.sources import OPTIMIZER_STEP
from composer_memprof.vocabulary import BACKWARD, DATALOADER, FORWARD

LOSS = 'loss'
#: The function that a batch of each stage counts as.
STEPS = {'train': 'training_step', 'eval': 'validation_step', 'predict': 'predict_step'}
#: All functions that events tell of; forward, loss and backward run once a microbatch.
FUNCTIONS = (*STEPS.values(), DATALOADER, FORWARD, LOSS, BACKWARD, OPTIMIZER_STEP)
#: The functions that Composer runs again, from forward on, when memory ran out and it tries smaller microbatches.
_RETRIED = (FORWARD, LOSS, BACKWARD)


class FunctionCallback(ProfilingCallback):
    """A callback that passes the begin and end of each function on to its recorder."""

    _functions: Optional[FunctionMemoryRecorder] = None
    #: The calls that are running, by function.
    _calls: dict[str, Optional[FunctionCall]]

    def _forget_run(self) -> None:
        super()._forget_run()
        self._calls = {}

    def _start(self, state: State, stamp: Stamp) -> None:
        self._calls = {}

    def _function_begins(self, function: str, state: State) -> None:
        if self._functions is not None:
            # A forward that begins again means that an error ended the pass before.
            for unfinished in _RETRIED if function == FORWARD else (function,):
                self._functions.cancel(self._calls.pop(unfinished, None))
            self._calls[function] = self._functions.begin_training_function(function, state.batch)

    def _function_ends(self, function: str, state: State) -> None:
        if self._functions is not None and function in self._calls:
            self._functions.end_training_function(function, self._calls.pop(function))

    def _forward_of_evaluation(self, state: State) -> None:
        """The forward pass of an evaluation or prediction batch begins; it does not count as a function."""
        if self._functions is not None:
            self._functions.notify_begin(FORWARD, state.batch)

    def _forward_of_evaluation_ends(self) -> None:
        if self._functions is not None:
            self._functions.notify_end(FORWARD)

    def eval_before_forward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._forward_of_evaluation(state)

    def eval_after_forward(self, state: State, logger: Logger) -> None:
        del state, logger  # unused
        self._forward_of_evaluation_ends()

    def predict_before_forward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._forward_of_evaluation(state)

    def predict_after_forward(self, state: State, logger: Logger) -> None:
        del state, logger  # unused
        self._forward_of_evaluation_ends()

    def _open_ahead(self, stage: str, state: State) -> None:
        """Open a window before the data of its first batch is loaded, if it begins with the next batch."""
        if stage in self._windows and not self.is_recording:
            following = self._windows.next_batch(stage)
            if following.active and not following.joined:
                self._before_batch(stage, state)

    def eval_start(self, state: State, logger: Logger) -> None:
        super().eval_start(state, logger)
        self._open_ahead('eval', state)

    def predict_start(self, state: State, logger: Logger) -> None:
        super().predict_start(state, logger)
        self._open_ahead('predict', state)

    def before_dataloader(self, state: State, logger: Logger) -> None:
        del logger  # unused
        length = state.dataloader_len
        if length is None or state.timestamp.batch_in_epoch < length:  # otherwise there is no next batch in this epoch
            self._open_ahead('train', state)
        self._function_begins(DATALOADER, state)

    def after_dataloader(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._function_ends(DATALOADER, state)

    def batch_start(self, state: State, logger: Logger) -> None:
        super().batch_start(state, logger)
        self._function_begins(STEPS['train'], state)

    def before_forward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._function_begins(FORWARD, state)

    def after_forward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._function_ends(FORWARD, state)

    def before_loss(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._function_begins(LOSS, state)

    def after_loss(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._function_ends(LOSS, state)

    def before_backward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._function_begins(BACKWARD, state)

    def after_backward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._function_ends(BACKWARD, state)

    def after_train_batch(self, state: State, logger: Logger) -> None:
        del logger  # unused
        # Composer runs forward and backward inside optimizer.step(); the update itself begins here.
        self._function_begins(OPTIMIZER_STEP, state)

    def batch_end(self, state: State, logger: Logger) -> None:
        self._function_ends(OPTIMIZER_STEP, state)
        self._function_ends(STEPS['train'], state)
        super().batch_end(state, logger)

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        super().eval_batch_start(state, logger)
        self._function_begins(STEPS['eval'], state)

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        self._function_ends(STEPS['eval'], state)
        super().eval_batch_end(state, logger)

    def predict_batch_start(self, state: State, logger: Logger) -> None:
        super().predict_batch_start(state, logger)
        self._function_begins(STEPS['predict'], state)

    def predict_batch_end(self, state: State, logger: Logger) -> None:
        self._function_ends(STEPS['predict'], state)
        super().predict_batch_end(state, logger)
