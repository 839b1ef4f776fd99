"""The phases of a batch, found by hooks on the model and its optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from composer_memprof.recorders.tensors import tensors_in
from composer_memprof.vocabulary import BACKWARD, FORWARD, OPTIMIZER


class ModelPhases:
    """Tells when forward, backward and the optimizer's update begin and end.

    Args:
        model (Module): that is trained. What it does in evaluation mode is no phase.
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
        if model.training:
            self._enter(FORWARD, (arguments, keywords))

    def _forward_ends(self, model: Module, arguments: Any, outputs: Any) -> None:
        if not model.training or self._phase != FORWARD:
            return
        self._enter(None)
        for tensor in tensors_in(outputs):
            if tensor.requires_grad:
                tensor.register_hook(self._backward_reaches_outputs)

    def _backward_reaches_outputs(self, gradient: Tensor) -> None:
        del gradient  # unused
        if self._phase is None:
            self._enter(BACKWARD)

    def _update_begins(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        del optimizer, arguments, keywords  # unused
        if self._phase != OPTIMIZER:
            self._enter(OPTIMIZER)
