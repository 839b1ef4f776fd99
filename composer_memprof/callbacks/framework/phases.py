"""The phases of a batch, from Composer's events: dataloader, forward, backward, optimizer, eval, checkpoint."""

from __future__ import annotations

from composer.core import State
from composer.loggers import Logger

from composer_memprof.callbacks.framework.base import ProfilingCallback


class PhasedCallback(ProfilingCallback):
    """A callback that is told of each phase as it begins."""

    def _phase_begins(self, phase: str, state: State) -> None:
        """From here on ``phase`` runs."""

    def before_dataloader(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins('dataloader', state)

    def after_dataloader(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins('between phases', state)

    def before_forward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins('forward', state)

    def before_backward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins('backward', state)

    def after_backward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins('between phases', state)

    def after_train_batch(self, state: State, logger: Logger) -> None:
        # Composer runs forward and backward inside the optimizer's step; its own part begins here.
        del logger  # unused
        self._phase_begins('optimizer', state)

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins('checkpoint', state)

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins('checkpoint', state)

    def eval_start(self, state: State, logger: Logger) -> None:
        self._phase_begins('eval', state)
        super().eval_start(state, logger)

    def eval_end(self, state: State, logger: Logger) -> None:
        super().eval_end(state, logger)
        self._phase_begins('between batches', state)
