"""What places the events of a memory snapshot: the phases of batches, the modules whose forward or backward runs, and
which addresses hold which tensors.

annotations = Annotations()
annotations.mark('forward', batch=0)
annotations.see_model(model, [optimizer])
annotations.as_dict()
"""

from __future__ import annotations

import collections
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from composer_memprof.recorders.compiled import is_compiled
from composer_memprof.recorders.dispatch import in_backward
from composer_memprof.recorders.model_hooks import Hook
from composer_memprof.recorders.tensors import named_tensors_in, parts_of, tensors_in

#: As many marks, or tensors, as a snapshot takes along; a history that never ends keeps the newest.
_MOST = 100_000
#: In the metadata of a backward node: the recording that has noted whose it is.
_SEEN = 'composer_memprof.module'


class Annotations:
    """Collects marks, on the clock of the events that they place: microseconds since 1970."""

    def __init__(self) -> None:
        self._rows: dict[str, collections.deque[list[Any]]] = {
            name: collections.deque(maxlen=_MOST) for name in ('phases', 'tensors', 'modules')
        }
        self._hooks: list[Any] = []
        self._token = object()
        # The modules whose forwards run, the innermost last; before them, the one that the backward has come to.
        self._running: list[str] = ['']

    def mark(self, phase: str, batch: int) -> None:
        """From now on ``phase`` of ``batch`` runs."""
        self._rows['phases'].append([_now_us(), batch, phase])
        if self._hooks:
            self._running = ['']
            self._mark_module('')

    def see_model(self, model: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer] = ()) -> None:
        """Note where parameters, buffers, gradients and optimizer state lie now."""
        self._see(_tensors_of(model, optimizers))

    def see_inputs(self, batch: Any) -> None:
        """Note where the tensors of a batch lie now."""
        self._see(('input', name, tensor) for name, tensor in named_tensors_in(batch, 'batch'))

    def follow_modules(self, model: torch.nn.Module) -> None:
        """Note which module's forward or backward runs, until :meth:`leave_modules`. A compiled model would be compiled
        anew for it, and is left alone."""
        if is_compiled(model):
            return

        def enter(name: str, module: object, inputs: object, keywords: object) -> None:
            if torch.compiler.is_compiling():
                return
            if len(self._running) == 1 and not in_backward():
                self._running = ['']
            self._note_backward((inputs, keywords), self._running[-1])
            self._running.append(name)
            self._mark_module(name)

        def leave(name: str, module: object, inputs: object, output: object) -> None:
            if torch.compiler.is_compiling():
                return
            if len(self._running) > 1:
                self._running.pop()
            self._note_backward(output, name)
            self._mark_module(self._running[-1])

        for name, module in model.named_modules():
            self._hooks.append(module.register_forward_pre_hook(Hook(enter, name), with_kwargs=True))
            self._hooks.append(module.register_forward_hook(Hook(leave, name), always_call=True))

    def _note_backward(self, values: Any, name: str) -> None:
        """When the backward pass comes to what made ``values``, it has come to the module ``name``.

        It runs operations in the reverse of their order. What a module returns was made by the innermost module that
        returns it, and what goes into one by the module around it, unless another has returned it.
        """
        try:
            for tensor in tensors_in(values):
                # To ask a view that was changed in place for its node makes a new one, and gradients add up otherwise.
                if not tensor.requires_grad or (tensor._is_view() and tensor._version):
                    continue
                node: Any = tensor.grad_fn  # torch's stub takes its ``metadata`` for a method
                if node is not None and node.metadata.get(_SEEN) is not self._token:
                    node.metadata[_SEEN] = self._token
                    node.register_prehook(Hook(_reached, weakref.ref(self), name))
        except Exception:  # of a mapping of the user's, say: the module is not known then, and training goes on
            return

    def _backward_reaches(self, name: str) -> None:
        if self._hooks:
            self._running[0] = name
            if len(self._running) == 1:  # otherwise a checkpoint runs a forward within the backward
                self._mark_module(name)

    def _mark_module(self, name: str) -> None:
        self._rows['modules'].append([_now_us(), name])

    def leave_modules(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _see(self, found: Iterable[tuple[str, str, torch.Tensor]]) -> None:
        now = _now_us()
        for category, name, tensor in found:
            try:
                storages = [part.untyped_storage() for part in parts_of(tensor)]
                places = [(storage.data_ptr(), storage.nbytes()) for storage in storages]
            except (RuntimeError, NotImplementedError, AttributeError):  # a tensor without memory of its own
                continue
            self._rows['tensors'].extend([now, address, size, category, name] for address, size in places if address)

    def as_dict(self) -> dict[str, Any]:
        """As a snapshot carries it: ``phases``, ``tensors`` and ``modules``, rows of plain values."""
        return {name: sorted(rows, key=_time_of) for name, rows in self._rows.items()}  # a clock may be set back


def _reached(annotations: weakref.ref[Annotations], name: str, gradients: object) -> None:
    """A hook of a backward node, which may live for long: it keeps nothing of the recording alive."""
    found = annotations()
    if found is not None:
        found._backward_reaches(name)


def _time_of(row: list[Any]) -> int:
    return row[0]


def _now_us() -> int:
    return time.time_ns() // 1000


def _tensors_of(
    model: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        names[id(parameter)] = name
        yield 'parameter', name, parameter
        if parameter.grad is not None:
            yield 'gradient', name, parameter.grad
    for name, buffer in model.named_buffers():
        yield 'buffer', name, buffer
    for optimizer in optimizers:
        for owner, state in optimizer.state.items():
            for key, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    yield 'optimizer_state', f'{names.get(id(owner), "?")}.{key}', value
