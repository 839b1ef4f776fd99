"""What Composer computes on the device and reads back: here that is zero. Checked on Composer 0.32.1."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import wrapt


def install() -> None:
    """Put the real values in their place, once the modules of Composer that read them are imported."""
    wrapt.when_imported('composer.trainer.trainer')(_end_epochs)
    wrapt.when_imported('composer.optim.decoupled_weight_decay')(_count_steps)


class _DataEndedError(Exception):
    """The loader has no more batches."""


def _end_epochs(trainer: types.ModuleType) -> None:
    """End each pass over the data when its loader ends: ``Trainer._iter_dataloader`` takes its batches with ``next``."""
    original = trainer.Trainer._iter_dataloader

    def next_or_end(iterator: Any, *default: Any) -> Any:
        try:
            return next(iterator, *default)
        except StopIteration:
            if sys._getframe(1).f_code is original.__code__:
                raise _DataEndedError from None
            raise

    def iterate(self: Any, trainer_mode: Any) -> Iterator[Any]:
        try:
            yield from original(self, trainer_mode)
        except _DataEndedError:
            if trainer_mode == trainer.TrainerMode.TRAIN:
                self.engine.run_marker_only_event(trainer.Event.AFTER_DATALOADER)

    vars(trainer)['next'] = next_or_end
    trainer.Trainer._iter_dataloader = iterate


def _count_steps(optimizers: types.ModuleType) -> None:
    """Let ``DecoupledAdamW`` read that it is the first step; it divides by what it computes of their number."""
    import torch

    original = optimizers.DecoupledAdamW.adamw

    def adamw(
        params: Any,
        grads: Any,
        exp_avgs: Any,
        exp_avg_sqs: Any,
        max_exp_avg_sqs: Any,
        state_steps: Any,
        **settings: Any,
    ) -> None:
        first = [torch.ones(()) for _ in state_steps]
        original(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, first, **settings)

    optimizers.DecoupledAdamW.adamw = staticmethod(adamw)
