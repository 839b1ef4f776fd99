"""Notes that locate the events of a memory snapshot: phases and batches, running modules, and the addresses of tensors.

annotations = Annotations()
annotations.mark('forward', batch=0)
annotations.see_model(model, [optimizer])
annotations.phases, annotations.tensors
"""

from __future__ import annotations

import collections
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import torch

from composer_memprof.messages import log_error
from composer_memprof.recorders.allocations.model_parts import hidden_modules
from composer_memprof.recorders.allocations.standing_blocks import storages_of
from composer_memprof.recorders.compiled import is_compiled
from composer_memprof.recorders.model_hooks import Hook
from composer_memprof.recorders.modules.names import named_buffers, named_modules, named_parameters
from composer_memprof.recorders.tensors import named_tensors_in, tensors_in
from composer_memprof.recorders.torch_private import compilation, graph_tasks, tensors
from composer_memprof.recorders.torch_private import fsdp_parameters as fsdp_parameters_of_torch
from composer_memprof.recorders.torch_private.fsdp_parameters import fsdp_parameters
from composer_memprof.recorders.torch_private.graph_tasks import in_backward
from composer_memprof.recorders.torch_private.tensors import is_modified_view
from composer_memprof.signals import holds_signals
from composer_memprof.vocabulary import (
    BUFFER,
    EVAL,
    EVAL_FORWARD,
    GRADIENT,
    INPUT,
    OPTIMIZER_STATE,
    PARAMETER,
    UNSHARDED_GRADIENT,
    UNSHARDED_PARAMETER,
    WITHIN_BATCH,
)

#: The modules of ``torch_private`` that this one needs.
NEEDS = (compilation, graph_tasks, tensors)
#: What FSDP2 holds is noted with it, and left out without.
FSDP2_NEEDS = (fsdp_parameters_of_torch,)
#: Rows of each kind that are kept, the newest: a recording may never end.
_MOST_ROWS = 100_000
#: In a backward node's metadata: the recording whose hook is on the node.
_HOOKED_BY = 'composer_memprof.module'

_Row = list[Any]


class Annotations:
    """Collects rows, timed by the clock of the allocator's events: microseconds since 1970.

    The rows are those of :class:`~composer_memprof.recorders.allocations.notes.SnapshotNotes`.
    """

    def __init__(self) -> None:
        self._phases, self._tensors, self._modules, self._rss = (_newest_rows() for _ in range(4))
        self._hooks: list[Any] = []
        self._token = object()
        self._in_evaluation = False
        # The module that the backward pass is in, then the modules whose forward runs, innermost last.
        self._running: list[str] = ['']
        #: The first module of an evaluation whose output can be backpropagated, so that its activations are kept; ``''`` if it
        #: is not known which, None if there is none so far.
        self.evaluation_graph: Optional[str] = None

    @property
    def phases(self) -> list[_Row]:
        return _in_order_of_time(self._phases)

    @property
    def tensors(self) -> list[_Row]:
        return _in_order_of_time(self._tensors)

    @property
    def modules(self) -> list[_Row]:
        return _in_order_of_time(self._modules)

    @property
    def rss(self) -> list[_Row]:
        return _in_order_of_time(self._rss)

    def note_rss(self, size: int) -> None:
        """The process has ``size`` bytes of resident memory now."""
        self._rss.append([_now_us(), size])

    def mark(self, phase: str, batch: int) -> None:
        """``phase`` of ``batch`` starts now."""
        self._phases.append([_now_us(), batch, phase])
        self._in_evaluation = phase in (EVAL, EVAL_FORWARD)
        if self._hooks:
            self._running = ['']
            self._mark_module('')

    def see_failed_allocation(self, *, evaluates: bool = False) -> None:
        """An allocation fails on this thread: note whether an evaluation records a graph there.

        Args:
            evaluates (bool): after a training, the model is in evaluation mode; or its forward runs, though in no phase
                of training.
        """
        is_marked = bool(self._phases) and self._phases[-1][2] in WITHIN_BATCH
        if (
            (self._in_evaluation or (evaluates and not is_marked))
            and self.evaluation_graph is None
            and torch.is_grad_enabled()
        ):
            self.evaluation_graph = ''

    def see_model(self, model: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer] = ()) -> None:
        """Note the present addresses of parameters, buffers, gradients and optimizer state."""
        self._see(tensors_of(model, optimizers))

    def see_inputs(self, batch: Any) -> None:
        """Note the present addresses of a batch's tensors."""
        self._see((INPUT, name, tensor) for name, tensor in named_tensors_in(batch, 'batch'))

    def follow_modules(self, model: torch.nn.Module) -> None:
        """Note which module's forward or backward runs, until :meth:`leave_modules`.

        Does nothing for a compiled model: hooks would make torch compile it again.
        """
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

        for name, module in [*named_modules(model, with_wrappers=True), *hidden_modules(model)]:
            self._hooks.append(module.register_forward_pre_hook(Hook(enter, name), with_kwargs=True))
            self._hooks.append(module.register_forward_hook(Hook(leave, name), always_call=True))

    @holds_signals
    def _note_backward(self, values: Any, name: str) -> None:
        """Hook the backward nodes of ``values``: when one of them runs, the backward pass enters module ``name``.

        The backward pass runs operations in reverse order. A module's output was made by the innermost module that
        returns it. A module's input was made by the module around it, unless another module returned it.
        """
        try:
            for tensor in tensors_in(values):
                # Reading grad_fn of a modified view makes a new node, which changes the order in which gradients are
                # summed.
                if not tensor.requires_grad or is_modified_view(tensor):
                    continue
                node: Any = tensor.grad_fn  # torch's stub declares ``metadata`` as a method
                if self._in_evaluation and self.evaluation_graph is None and node is not None:
                    self.evaluation_graph = name
                if node is not None and node.metadata.get(_HOOKED_BY) is not self._token:
                    node.metadata[_HOOKED_BY] = self._token
                    node.register_prehook(Hook(_enter_backward, weakref.ref(self), name))
        except Exception:  # a mapping of the user's may raise anything; its module stays unknown
            log_error(f'the backward of {name} could not be followed')
            return

    def _backward_enters(self, name: str) -> None:
        if self._hooks:
            self._running[0] = name
            if len(self._running) == 1:  # otherwise activation checkpointing runs a forward within the backward
                self._mark_module(name)

    def _mark_module(self, name: str) -> None:
        self._modules.append([_now_us(), name])

    def leave_modules(self) -> None:
        """Remove the hooks of :meth:`follow_modules`."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _see(self, found: Iterable[tuple[str, str, torch.Tensor]]) -> None:
        now = _now_us()
        for category, name, tensor in found:
            places = [(storage.data_ptr(), storage.nbytes()) for storage in storages_of(tensor)]
            self._tensors.extend([now, address, size, category, name] for address, size in places if address)


@holds_signals
def _enter_backward(annotations: weakref.ref[Annotations], name: str, gradients: object) -> None:
    """A hook of a backward node. The node may outlive the recording, so it holds a weak reference."""
    found = annotations()
    if found is not None:
        found._backward_enters(name)


def _newest_rows() -> collections.deque[_Row]:
    return collections.deque(maxlen=_MOST_ROWS)


def _in_order_of_time(rows: Iterable[_Row]) -> list[_Row]:
    """Sorted, since the clock may be set back."""
    return sorted(rows, key=_time_of)


def _time_of(row: _Row) -> int:
    return row[0]


def _now_us() -> int:
    return time.time_ns() // 1000


def gathered_in(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """The gathered parameters of FSDP2, with the memory that they have now."""
    for parameter in fsdp_parameters(model):
        yield from parameter.unsharded


def tensors_of(
    model: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Category, dotted name and tensor of each parameter, buffer, gradient and optimizer state."""
    parameters = list(named_parameters(model))
    sharded = list(fsdp_parameters(model))
    names = {id(parameter): name for name, parameter in parameters}
    for each in sharded:  # the model has one of the two forms now; the name is its
        found = [names[id(form)] for form in (each.sharded, *each.unsharded) if id(form) in names]
        names[id(each.sharded)] = found[0] if found else each.name
    for parameter in {
        id(one): one for one in [*(one for _, one in parameters), *(each.sharded for each in sharded)]
    }.values():
        yield PARAMETER, names[id(parameter)], parameter
        if parameter.grad is not None:
            yield GRADIENT, names[id(parameter)], parameter.grad
    for each in sharded:  # while it is gathered, the whole parameter is the model's
        for tensor in each.unsharded:
            yield UNSHARDED_PARAMETER, names[id(each.sharded)], tensor
        for tensor in each.unsharded_gradients:
            yield UNSHARDED_GRADIENT, names[id(each.sharded)], tensor
    for name, buffer in named_buffers(model):
        yield BUFFER, name, buffer
    for optimizer in optimizers:
        for owner, state in optimizer.state.items():
            for name, tensor in named_tensors_in(state, names.get(id(owner), '?')):
                yield OPTIMIZER_STATE, name, tensor
