"""The end of an epoch in Composer's Trainer, which it computes on the device and reads back: here that is zero."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any


class _DataEndedError(Exception):
    """The loader has no more batches."""


def install(trainer: types.ModuleType) -> None:
    """End each pass over the data when its loader ends. Called once ``composer.trainer.trainer`` is imported.

    Checked on Composer 0.32.1: ``Trainer._iter_dataloader`` takes its batches with ``next``.
    """
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
