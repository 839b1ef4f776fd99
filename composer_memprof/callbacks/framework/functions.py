"""The functions of a training run, from Composer's events: the batch, its phases, and those of evaluation."""

from __future__ import annotations

from typing import Optional

from composer.core import State
from composer.loggers import Logger

from composer_memprof.artifacts.names import Stamp
from composer_memprof.callbacks.framework.base import ProfilingCallback
from composer_memprof.recorders.functions.recorder import FunctionMemoryRecorder
from composer_memprof.recorders.functions.source import FunctionCall

#: What a stage's batch is, as a function.
STEPS = {'train': 'training_step', 'eval': 'validation_step', 'predict': 'predict_step'}
#: All of them; forward, loss and backward come once a microbatch.
FUNCTIONS = (*STEPS.values(), 'dataloader', 'forward', 'loss', 'backward', 'optimizer_step')


#: What is run anew where memory was short.
_PASS = ('forward', 'loss', 'backward')


class FunctionCallback(ProfilingCallback):
    """A callback whose recorder is told of each function as it begins and ends."""

    _functions: Optional[FunctionMemoryRecorder] = None
    #: Those of the training that are under way.
    _calls: dict[str, Optional[FunctionCall]]

    def _forget_run(self) -> None:
        super()._forget_run()
        self._calls = {}

    def _start(self, state: State, stamp: Stamp) -> None:
        self._calls = {}

    def _function_begins(self, function: str, state: State) -> None:
        if self._functions is not None:
            # What an error has cut short is tried again from its forward on.
            for cut in _PASS if function == 'forward' else (function,):
                self._functions.cancel(self._calls.pop(cut, None))
            self._calls[function] = self._functions.begin_training_function(function, state.batch)

    def _function_ends(self, function: str, state: State) -> None:
        if self._functions is not None and function in self._calls:
            self._functions.end_training_function(function, self._calls.pop(function))

    def _forward_of_evaluation(self, state: State) -> None:
        """The forward pass of a batch of evaluation or prediction begins; it is no function of its own."""
        if self._functions is not None:
            self._functions.notify_begin('forward', state.batch)

    def eval_before_forward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._forward_of_evaluation(state)

    def predict_before_forward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._forward_of_evaluation(state)

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
