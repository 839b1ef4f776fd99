"""A run without Composer's Trainer: the loop says when a batch has ended, and the callbacks see Composer's events.

The callbacks are the same as in a Trainer, and know nothing of this module: it makes the state and sends the events.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Optional, Union

import torch
from composer.core import Callback, Engine, Event, State
from composer.devices import Device, DeviceCPU, DeviceGPU
from composer.loggers import Logger, LoggerDestination
from torch.nn import Module
from torch.optim import Optimizer
from typing_extensions import Self

from composer_memprof.callbacks.framework.closing.run_end import run_end
from composer_memprof.callbacks.framework.options import raise_with_name
from composer_memprof.loop.data_phases import DataPhases
from composer_memprof.loop.model_phases import ModelPhases
from composer_memprof.messages import check_one_of
from composer_memprof.vocabulary import BACKWARD, CHECKPOINT, DATALOADER, EVAL, FORWARD, OPTIMIZER, WITHIN_BATCH

#: The events at the beginning and the end of each phase.
_PHASES: dict[str, tuple[tuple[Event, ...], tuple[Event, ...]]] = {
    DATALOADER: ((Event.BEFORE_DATALOADER,), (Event.AFTER_DATALOADER,)),
    FORWARD: ((Event.BEFORE_FORWARD,), (Event.AFTER_FORWARD,)),
    BACKWARD: ((Event.BEFORE_BACKWARD,), (Event.AFTER_BACKWARD,)),
    OPTIMIZER: ((Event.AFTER_TRAIN_BATCH,), ()),
    CHECKPOINT: ((Event.BATCH_CHECKPOINT,), ()),
    EVAL: ((Event.EVAL_START,), (Event.EVAL_END,)),
}
#: Within these, the run loads no data for its next batch.
_LOAD_THEIR_OWN = (DATALOADER, EVAL)


class Run:
    """A run in a loop of one's own; :func:`profile` makes it.

    Args:
        callbacks (Callback): of this package, or of Composer's.
        run_name (str): in the names of files.
        model (Module, optional): that is trained.
        optimizers (Sequence[Optimizer]): that train it.
        follows_model (bool): find forward, backward and update by hooks on the model and its optimizers. Default: ``True``.
        max_duration (str, optional): how long the loop goes on, such as ``'1000ba'``, for schedules in ``dur``.
        loggers (Sequence[LoggerDestination]): that get the callbacks' metrics.
    """

    def __init__(
        self,
        *callbacks: Callback,
        run_name: str,
        model: Optional[Module] = None,
        optimizers: Sequence[Optimizer] = (),
        follows_model: bool = True,
        max_duration: Optional[str] = None,
        loggers: Sequence[LoggerDestination] = (),
    ) -> None:
        self.state = State(
            model=Module() if model is None else model,
            rank_zero_seed=0,
            run_name=run_name,
            device=_device(),
            max_duration=max_duration,
            optimizers=list(optimizers),
            callbacks=[*loggers, *callbacks],
        )
        self._logger = Logger(self.state, list(loggers))
        self._engine = Engine(self.state, self._logger)
        self._model_phases: Optional[ModelPhases] = None
        if model is not None and follows_model:
            self._model_phases = ModelPhases(model, optimizers, self.begin_phase, self.end_phase)
        self._data_phases = DataPhases(self._loading_begins, self._loading_ends)
        self._begun_at = time.monotonic()
        self._in_batch = False
        #: Phases that have begun and load data of their own.
        self._own_loading = 0
        self._is_loading = False
        #: The phase that :meth:`switch_to` began last; None if that has ended.
        self.switched_to: Optional[str] = None
        #: Whether the loop says itself when a batch begins, by its phases or its model.
        self._has_phases = model is not None
        self._is_open = False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close(failed=error is not None)

    def start(self) -> Self:
        """Begin the run; a ``with`` block does it.

        Raises:
            ValueError: for a setting of a callback that does not fit the run.
        """
        self._is_open = True
        try:
            self._send(Event.INIT)
            self._send(Event.FIT_START)
            self._send(Event.EPOCH_START)
        except BaseException:
            self.close(failed=True)
            raise
        self._data_phases.follow()
        if self._model_phases is not None:
            self._model_phases.follow()
        elif not self._has_phases:
            self._begin_batch()
        return self

    def step(self, *, samples: int = 0, tokens: int = 0) -> None:
        """A batch has ended, with the optimizer's step.

        Args:
            samples (int): that it had, for schedules that count them.
            tokens (int): likewise.
        """
        if not self._is_open:
            return
        self._begin_batch()
        if self._model_phases is not None:
            self._model_phases.batch_ends()
        now = time.monotonic()
        duration = datetime.timedelta(seconds=now - self._begun_at)
        self._begun_at = now
        self.state.timestamp = self.state.timestamp.to_next_batch(samples, tokens, duration)
        self._in_batch = False
        self._send(Event.BATCH_END)
        if not self._has_phases:
            self._begin_batch()

    def epoch(self) -> None:
        """An epoch has ended, for schedules that count them."""
        if not self._is_open:
            return
        self.state.timestamp = self.state.timestamp.to_next_epoch()
        self._send(Event.EPOCH_END)
        self._send(Event.EPOCH_START)
        if self._in_batch and not self._has_phases:  # it began when the last one ended; it is of this epoch
            self._in_batch = False
            self._begin_batch()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The block is a phase of training: dataloader, forward, backward, optimizer, checkpoint or eval.

        Raises:
            ValueError: for another name.
        """
        check_one_of('phase', name, list(_PHASES))
        self.begin_phase(name)
        try:
            yield
        finally:
            self.end_phase(name)

    def begin_phase(self, name: str, batch: Any = None) -> None:
        """A phase begins; ``batch`` is what forward gets."""
        self._has_phases = True
        self._own_loading += name in _LOAD_THEIR_OWN
        if not self._is_open:
            return
        self.state.batch = batch
        if name in WITHIN_BATCH:
            self._begin_batch()
        for event in _PHASES[name][0]:
            self._send(event)
        self.state.batch = None  # it must not live longer than in the loop

    def end_phase(self, name: str) -> None:
        """The phase has ended."""
        self._own_loading -= name in _LOAD_THEIR_OWN
        if self._is_open:
            for event in _PHASES[name][1]:
                self._send(event)

    def switch_to(self, phase: Optional[str], batch: Any = None) -> None:
        """End the phase that this has begun, and begin another one, or none: for a Trainer that tells beginnings alone."""
        if self.switched_to is not None:
            self.end_phase(self.switched_to)
        self.switched_to = phase
        if phase is not None:
            self.begin_phase(phase, batch)

    def _loading_begins(self) -> None:
        """A DataLoader is asked for the next batch. Without other phases, the batch begins when the data is there."""
        self._is_loading = self._is_open and not self._own_loading
        if self._is_loading:
            self._send(*_PHASES[DATALOADER][0])

    def _loading_ends(self) -> None:
        if self._is_loading:
            self._is_loading = False
            self._send(*_PHASES[DATALOADER][1])

    def close(self, *, failed: Union[bool, BaseException] = False) -> None:
        """End the run, and wait until its files are written; a ``with`` block does it.

        Args:
            failed (bool | BaseException): the exception that ends the run; True: the one that is handled now. The manifest
                then says so.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._data_phases.leave()
        if self._model_phases is not None:
            self._model_phases.leave()
        if failed:
            run_end(self.state).fit_failed(failed if isinstance(failed, BaseException) else None)
        else:
            self._send(Event.FIT_END)
        self._engine.close()

    def _begin_batch(self) -> None:
        if not self._in_batch:
            self._in_batch = True
            self._send(Event.BATCH_START)
            self._send(Event.BEFORE_TRAIN_BATCH)

    def _send(self, event: Event) -> None:
        for callback in list(self.state.callbacks):
            try:
                callback.run_event(event, self.state, self._logger)
            except ValueError as error:
                raise_with_name(type(callback).__name__, error)


def profile(*callbacks: Callback, run_name: str, **settings: Any) -> Run:
    """Record a training loop of your own with the same callbacks, schedules and files as in Composer's Trainer.

    >>> import torch
    >>> from composer_memprof import StepTimes
    >>> with profile(StepTimes(), run_name='mine') as run:
    ...     for batch in range(3):
    ...         with run.phase('forward'):
    ...             loss = torch.ones(8, requires_grad=True).sum()
    ...         loss.backward()
    ...         run.step()

    Args:
        callbacks (Callback): of this package, or of Composer's.
        run_name (str): in the names of files.
        settings: ``model``, ``optimizers``, ``follows_model``, ``max_duration`` and ``loggers`` of :class:`Run`.
    """
    return Run(*callbacks, run_name=run_name, **settings)


def _device() -> Device:
    if not torch.cuda.is_available():
        return DeviceCPU()
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        return DeviceGPU(torch.cuda.current_device())
    finally:  # which Composer's own Trainer changes; here it would change the loop's numbers
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn
