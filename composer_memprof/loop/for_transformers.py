"""The callbacks in the Trainer of Hugging Face's Transformers, which is imported with this module."""

from __future__ import annotations

import atexit
import sys
from typing import Any, Optional

from composer.core import Callback
from transformers import TrainerCallback

from composer_memprof.loop.run import Run
from composer_memprof.vocabulary import CHECKPOINT, EVAL


class MemprofCallback(TrainerCallback):
    """Records a training of Transformers' Trainer: ``Trainer(..., callbacks=[MemprofCallback(MemorySnapshot())])``.

    Args:
        callbacks (Callback): of this package, or of Composer's.
        run_name (str, optional): Default: that of the training's arguments, else ``'transformers'``.
        settings: ``max_duration`` and ``loggers`` of :class:`~composer_memprof.loop.run.Run`.
    """

    def __init__(self, *callbacks: Callback, run_name: Optional[str] = None, **settings: Any) -> None:
        self._callbacks = callbacks
        self._run_name = run_name
        self._settings = settings
        self._run: Optional[Run] = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        optimizer = objects.get('optimizer')
        self._run = Run(
            *self._callbacks,
            run_name=self._run_name or args.run_name or 'transformers',
            model=objects['model'],
            optimizers=[] if optimizer is None else [getattr(optimizer, 'optimizer', optimizer)],
            **self._settings,
        ).start()
        atexit.register(self._end_at_exit)

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if self._run is not None:
            self._run.step(samples=args.train_batch_size * args.gradient_accumulation_steps)
            # What the Trainer does next, by its own decision.
            self._enter(EVAL if control.should_evaluate else CHECKPOINT if control.should_save else None)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._enter(EVAL)

    def on_evaluate(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._enter(CHECKPOINT if control.should_save else None)

    def on_save(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._enter(None)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if self._run is not None:
            self._run.epoch()

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        atexit.unregister(self._end_at_exit)
        if self._run is not None:
            self._run.close()
            self._run = None

    def _end_at_exit(self) -> None:
        """Note the exception that ended the script within the training, of which Transformers tells no callback."""
        run, self._run, error = self._run, None, getattr(sys, 'last_value', None)
        if run is not None and error is not None:
            run.close(failed=error)

    def _enter(self, phase: Optional[str]) -> None:
        if self._run is not None and phase != self._run.switched_to:
            self._run.switch_to(phase)
