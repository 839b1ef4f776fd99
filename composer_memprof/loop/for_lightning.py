"""The callbacks in the Trainer of Lightning, which is imported with this module."""

from __future__ import annotations

from typing import Any, Optional

from composer.core import Callback
from lightning.pytorch.callbacks import Callback as LightningCallback

from composer_memprof.loop.run import Run
from composer_memprof.vocabulary import BACKWARD, CHECKPOINT, EVAL, FORWARD, OPTIMIZER


class MemprofCallback(LightningCallback):
    """Records a training of Lightning's Trainer: ``Trainer(callbacks=[MemprofCallback(MemorySnapshot(), run_name='x')])``.

    Args:
        callbacks (Callback): of this package, or of Composer's.
        run_name (str): in the names of files. Default: ``'lightning'``.
        settings: ``max_duration`` and ``loggers`` of :class:`~composer_memprof.loop.run.Run`.
    """

    def __init__(self, *callbacks: Callback, run_name: str = 'lightning', **settings: Any) -> None:
        self._callbacks = callbacks
        self._run_name = run_name
        self._settings = settings
        self._run: Optional[Run] = None
        self._steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps = trainer.global_step
        self._run = Run(
            *self._callbacks,
            run_name=self._run_name,
            model=pl_module,
            optimizers=[getattr(each, 'optimizer', each) for each in trainer.optimizers],
            follows_model=False,  # training_step calls what it likes
            **self._settings,
        ).start()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._enter(FORWARD, batch)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        self._enter(BACKWARD)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self._enter(None)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self._enter(OPTIMIZER)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._enter(None)
        if self._run is not None and trainer.global_step > self._steps:  # gradients of other batches are accumulated
            self._steps = trainer.global_step
            self._run.step()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._enter(EVAL)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self._run is not None and self._run.switched_to == EVAL:
            self._run.switch_to(None)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        self._enter(CHECKPOINT)  # it is written until the next batch begins

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._run is not None:
            self._run.epoch()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._close(failed=False)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close(failed=True)

    def _enter(self, phase: Optional[str], batch: Any = None) -> None:
        if self._run is not None:
            self._run.switch_to(phase, batch)

    def _close(self, *, failed: bool) -> None:
        if self._run is not None:
            self._run.close(failed=failed)
            self._run = None
