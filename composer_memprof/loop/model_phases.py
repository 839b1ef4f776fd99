"""The phases of a batch, found by hooks on the model and its optimizers."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from composer_memprof.recorders.tensors import tensors_in
from composer_memprof.vocabulary import BACKWARD, FORWARD, OPTIMIZER

#: Code that is no loop's own: the lines of it that call each other say nothing of where a loop is.
_LIBRARIES = tuple(f'{os.path.dirname(os.path.abspath(path))}{os.sep}' for path in (torch.__file__, f'{__file__}/..'))
#: Frames that tell calls apart, innermost first.
_FRAMES = 32
#: The lines that call each other up to a forward pass.
_Calls = tuple[tuple[CodeType, int], ...]


class ModelPhases:
    """Tells when forward, backward and the optimizer's update begin and end.

    Args:
        model (Module): that is trained. What it does in evaluation mode is no phase; nor is a forward pass in training mode
            that is called from lines whose results no backward pass has reached, once one has reached others: an evaluation.
        optimizers (Sequence[Optimizer]): of it.
        begin (Callable): is told that a phase begins, and what forward gets.
        end (Callable): is told that it ends.
    """

    def __init__(
        self,
        model: Module,
        optimizers: Sequence[Optimizer],
        begin: Callable[..., None],
        end: Callable[[str], None],
    ) -> None:
        self._model = model
        self._optimizers = optimizers
        self._begin, self._end = begin, end
        self._hooks: list[Any] = []
        self._phase: Optional[str] = None
        #: The calls of forward passes whose results a backward pass has reached.
        self._trained: set[_Calls] = set()
        self._calls: _Calls = ()

    def follow(self) -> None:
        self._hooks = [
            self._model.register_forward_pre_hook(self._forward_begins, with_kwargs=True),
            self._model.register_forward_hook(self._forward_ends),
            *(optimizer.register_step_pre_hook(self._update_begins) for optimizer in self._optimizers),
        ]

    def leave(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def batch_ends(self) -> None:
        self._enter(None)

    def _enter(self, phase: Optional[str], batch: Any = None) -> None:
        if self._phase is not None:
            self._end(self._phase)
        self._phase = phase
        if phase is not None:
            self._begin(phase, batch)

    def _forward_begins(self, model: Module, arguments: Any, keywords: Any) -> None:
        if not model.training:
            return
        self._calls = _calls()
        is_of_training = not self._trained or self._calls in self._trained
        if is_of_training:
            self._enter(FORWARD, (arguments, keywords))
        elif self._phase in (BACKWARD, OPTIMIZER):
            self._enter(None)

    def _forward_ends(self, model: Module, arguments: Any, outputs: Any) -> None:
        if not model.training:
            return
        if self._phase == FORWARD:
            self._enter(None)
        reached = functools.partial(self._backward_reaches_outputs, self._calls)
        for tensor in tensors_in(outputs):
            if tensor.requires_grad:
                tensor.register_hook(reached)

    def _backward_reaches_outputs(self, calls: _Calls, gradient: Tensor) -> None:
        del gradient  # unused
        self._trained.add(calls)
        if self._phase is None:
            self._enter(BACKWARD)

    def _update_begins(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        del optimizer, arguments, keywords  # unused
        if self._phase != OPTIMIZER:
            self._enter(OPTIMIZER)


def _calls() -> _Calls:
    """The lines of the user's code, and of libraries other than torch, that are running on this thread, innermost first."""
    found: list[tuple[CodeType, int]] = []
    frame = sys._getframe(1)
    while frame is not None and len(found) < _FRAMES:
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)
