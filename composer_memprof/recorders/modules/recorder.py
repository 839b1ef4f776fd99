"""Record a model's memory while it trains, by category and by module.

Every storage that an operation makes or uses is followed until it is freed. Its category is often known only later (a
storage is a gradient's when it is found in ``.grad``), so categories may change until the recording ends. Peaks are
found in the log after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

import torch
from torch import nn

from composer_memprof.messages import errors_logged
from composer_memprof.recorders import dispatch
from composer_memprof.recorders.modules.allocator import AllocatorReadings
from composer_memprof.recorders.modules.categories import (
    ACTIVATION,
    ALL_GATHER,
    BUFFER,
    CATEGORIES,
    FSDP2_CATEGORIES,
    GRADIENT,
    INPUT,
    OPTIMIZER_STATE,
    OTHER,
    PARAMETER,
    REDUCE_SCATTER,
    SHARDED_GRADIENT,
    SHARDED_PARAMETER,
    TEMPORARY,
    UNSHARDED_GRADIENT,
    UNSHARDED_PARAMETER,
)
from composer_memprof.recorders.modules.holders import (
    DDP_BUCKETS,
    ELSEWHERE,
    bucket_bytes,
    largest,
    live_tensors,
    nearest_holders,
    with_inner_optimizers,
)
from composer_memprof.recorders.modules.memory_log import MemoryLog
from composer_memprof.recorders.modules.model import check_model, find_root, is_fsdp2
from composer_memprof.recorders.modules.names import module_named, named_modules
from composer_memprof.recorders.modules.result import ModuleMemory
from composer_memprof.recorders.modules.running_module import RunningModule
from composer_memprof.recorders.modules.storages import StorageFollower
from composer_memprof.recorders.torch_private import ddp, fsdp, operators, require
from composer_memprof.recorders.torch_private import fsdp_parameters as fsdp_parameters_of_torch
from composer_memprof.recorders.torch_private.fsdp_parameters import FSDPParameter, fsdp_parameters
from composer_memprof.recorders.torch_private.tensors import is_wrapper
from composer_memprof.recorders.with_block import WithBlock
from composer_memprof.vocabulary import BACKWARD, BETWEEN_BATCHES, FORWARD, OPTIMIZER

#: The modules of ``torch_private`` that this needs; for a model under FSDP2 it needs ``FSDP2_NEEDS`` too.
NEEDS = dispatch.NEEDS
FSDP2_NEEDS = (fsdp, fsdp_parameters_of_torch)
#: Without it DDP's buckets are not listed.
DDP_NEEDS = (ddp,)

#: The operation by which a copied or unpickled tensor gets its storage.
_SET_STORAGE = 'aten::set_'
_FSDP_OPERATIONS = frozenset(
    {fsdp.REDUCE_SCATTER, fsdp.ALL_GATHER_COPY_IN, fsdp.ALL_GATHER_COPY_OUT, fsdp.REDUCE_SCATTER_COPY_IN}
)
#: Categories that an operation assigns by guess.
_GUESSED = (OTHER, TEMPORARY, ACTIVATION)


class ModuleMemoryRecorder(WithBlock):
    """Records the memory of ``model`` while it trains, on CPU or GPU. Training computes the same numbers as without.

    For plain, DDP and FSDP2 models. A ``with`` block recognizes forward and backward by itself; the optimizer's step has
    to be marked, because forward and backward may run inside of it (a closure).

    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> recorder = ModuleMemoryRecorder(model, [optimizer])
    >>> with recorder:
    ...     recorder.begin_batch(batch := torch.ones(3, 4))
    ...     model(batch).sum().backward()
    ...     recorder.begin_optimizer()
    ...     optimizer.step()
    ...     recorder.end_optimizer()
    >>> recorder.result.peak['cpu']['Parameter']
    40

    Args:
        model (Module): all of its parameters, gradients and buffers are counted.
        optimizers (Sequence[Optimizer]): their state is counted.
        root_module (str, optional): dotted name, in the model that the user wrote, of the module whose submodules are
            reported. None: the topmost module that FSDP2 shards, else the model.
        depth (int, optional): levels of modules whose states are kept, the root module being 1. None: all.
        holders (Callable, optional): returns objects by name. A tensor that was there before the recording, and is none
            of the model's or the optimizers', is listed under the one of these that is nearest to it.

    Raises:
        ValueError: for a model that can't be recorded: without parameters, under FSDP1, without that root module.
    """

    no_result = 'no module memory was recorded'

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer] = (),
        root_module: Optional[str] = None,
        depth: Optional[int] = None,
        holders: Optional[Callable[[], Mapping[str, Any]]] = None,
    ) -> None:
        check_model(model)
        self.depth = depth
        self.root_name = find_root(model, root_module)
        self.model = model
        self.optimizers = with_inner_optimizers(optimizers)
        self._holders = holders  # a function, so that nothing here keeps what they hold alive
        self.sharded = any(is_fsdp2(module) for module in model.modules())
        #: The error that ended the recording early, raised while an operation of the training ran.
        self.error: Optional[Exception] = None
        self.result: Optional[ModuleMemory] = None
        self._log: Optional[MemoryLog] = None

    # -- a recording ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to record.

        Raises:
            RuntimeError: if a memory tracker of torch's own is active, or this recorder already is.
            MissingTorchNameError: for an FSDP2 model, if torch lacks FSDP2's operators of ``FSDP2_NEEDS``.
        """
        if self._log is not None:
            raise RuntimeError('this recorder is already active')
        tracker = dispatch.foreign_tracker()
        if tracker is not None:
            raise RuntimeError(f'another tracker is active: {tracker}. Leave it before this recorder starts')
        if self.sharded:
            require(*FSDP2_NEEDS)
        names = FSDP2_CATEGORIES if self.sharded else CATEGORIES
        self._parameter, self._gradient = (
            (SHARDED_PARAMETER, SHARDED_GRADIENT) if self.sharded else (PARAMETER, GRADIENT)
        )
        self._schema_names: dict[Any, str] = {}
        self._last_operation = ''
        self.error = self.result = None
        self._outside = False
        self._optimizing = False
        self._parameters = list(self.model.parameters())
        modules = list(named_modules(module_named(self.model, self.root_name)))
        self._running = RunningModule([module for _, module in modules])
        log = self._log = MemoryLog(names, modules, self.root_name)
        self._storages = StorageFollower(log, {name: code for code, name in enumerate(names)})
        self._tag_model()
        self._bucket_bytes = bucket_bytes(self.model)
        self._has_buckets = bool(self._bucket_bytes)
        self._see_what_was_before()
        self._allocators = AllocatorReadings()
        self._allocators.begin(
            {
                device: self._storages.live[number] + self._bucket_bytes.get(device, 0)
                for device, number in self._storages.devices.items()
            }
        )
        dispatch.listen(self)

    def stop(self) -> ModuleMemory:
        """End the recording, and leave torch and the model as they were before it.

        Raises:
            RuntimeError: if the recording failed.
        """
        dispatch.stop_listening(self)
        log = self._log
        if log is None:
            raise RuntimeError('this recorder is not active')
        try:
            if self.error is not None:
                raise RuntimeError(f'recording ended early: {self.error}') from self.error
            self._tag_gradients()
            self._tag_optimizer_state()
            for device, size in self._bucket_bytes.items():
                self._storages.add_unseen(device, size, DDP_BUCKETS)
            self._storages.close()
            memory = log.read([str(device) for device in self._storages.devices], self.depth)
            self.result = replace(memory, not_seen=self._allocators.read())
            return self.result
        finally:
            self._forget()

    def cancel(self) -> None:
        """End the recording without a result."""
        dispatch.stop_listening(self)
        self._forget()

    def _forget(self) -> None:
        if self._log is not None:
            self._storages.close()
        self._log = None
        self._parameters = []
        self._running = RunningModule([])

    # -- phases -----------------------------------------------------------------------------------------------------

    def begin_batch(self, inputs: Any = None) -> None:
        """A batch or microbatch begins; ``inputs`` are its tensors, in any nesting."""
        if self._log is None:
            return
        if self._optimizing:
            self.end_optimizer()
        self._outside = False
        self.track_inputs(inputs)

    def track_inputs(self, inputs: Any) -> None:
        """Count the tensors in ``inputs`` as inputs: they come from outside of the training step."""
        if self._log is not None:
            self._storages.tag_all(inputs, INPUT, over=(OTHER, ACTIVATION))

    def end_backward(self) -> None:
        """A backward pass ended: the tensors in ``.grad`` are gradients."""
        if self._log is not None:
            self._tag_gradients()
            self._running.leave_all()

    def begin_optimizer(self) -> None:
        """Forward and backward ended, even if the optimizer's ``step`` was called long before."""
        if self._log is None:
            return
        self._tag_gradients()
        self._optimizing = True
        self._log.begin_phase(OPTIMIZER)

    def end_optimizer(self) -> None:
        """The optimizer's step ended: the tensors that it keeps are its state."""
        if self._log is None:
            return
        self._optimizing = False
        self._tag_optimizer_state()
        self._log.begin_phase(BETWEEN_BATCHES)

    def end_batch(self) -> None:
        """The training step ended: what is allocated from now on (metrics, callbacks, the next batch) is ``Other``."""
        if self._log is None:
            return
        if self._optimizing:
            self.end_optimizer()
        self._outside = True
        self._log.begin_phase(BETWEEN_BATCHES)

    # -- OperationListener ------------------------------------------------------------------------------------------

    def operated(self, operation: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        log = self._log
        if log is None:
            return
        log.tick += 1
        if self._outside:
            category = OTHER
        elif self._optimizing:
            category = TEMPORARY
        elif dispatch.in_backward():
            # Gradients are off in a backward pass, except where a checkpoint runs its forward again.
            category = ACTIVATION if torch.is_grad_enabled() else TEMPORARY
            log.begin_phase(BACKWARD)
            log.module = self._running.current()
            if not self._running.is_inside:
                log.note_backward()
        else:
            category = ACTIVATION
            log.begin_phase(FORWARD)
            log.module = self._running.current()
        name = self._schema_names.get(operation)
        if name is None:
            name = self._schema_names[operation] = operators.schema_name(operation)
        see = self._storages.see
        argument_category = self._category_of_argument(name)
        if self._has_buckets and dispatch.in_backward():
            self._see_buckets(name, (*arguments, *keywords.values()), argument_category)
        for value in arguments:
            see(value, argument_category)
        for value in keywords.values():
            see(value, argument_category)
        see(result, category)
        if self.sharded:
            self._tag_fsdp(name, arguments, keywords, result)
        for device, highest in self._allocators.devices.items():
            seen = self._storages.live[self._storages.devices[device]] + self._bucket_bytes.get(device, 0)
            if seen > highest:
                self._allocators.higher(device, seen)
        self._last_operation = name

    def resized(self, storage: torch.UntypedStorage) -> None:
        if self._log is not None:
            self._storages.resized(storage)

    def entered(self, module: nn.Module) -> None:
        number = self._running.enter(module)
        if number is not None and self._log is not None:
            self._log.enter_state(number, 'Pre-Forward-AC' if dispatch.in_backward() else 'Pre-Forward')

    def left(self, module: nn.Module) -> None:
        number = self._running.leave(module)
        if number is not None and self._log is not None:
            self._log.enter_state(number, 'Post-Forward-AC' if dispatch.in_backward() else 'Post-Forward')

    def failed(self, error: Exception) -> None:
        self.error = error

    # -- what was there before --------------------------------------------------------------------------------------

    def _see_what_was_before(self) -> None:
        """Follow all other tensors too, so that they count from the start and not from their first use."""
        log = self._log
        assert log is not None
        storages: dict[int, list[int]] = {}
        followed, rest = largest(live_tensors())
        for device, size in rest.items():
            self._storages.add_unseen(device, size, ELSEWHERE)
        for tensor in followed:
            with errors_logged('a tensor refused to be looked at'):
                storages[id(tensor)] = self._storages.see_older(tensor, ELSEWHERE)
        unnamed = {key: numbers for key, numbers in storages.items() if any(map(log.before.get, numbers))}
        holders = {**(self._holders() if self._holders else {}), 'model': self.model, 'optimizer': self.optimizers}
        for key, name in nearest_holders(unnamed, holders).items():
            for number in unnamed[key]:
                if log.before.get(number) == ELSEWHERE:
                    log.before[number] = name

    def _see_buckets(self, operation: str, values: Any, category: str) -> None:
        """C++ holds DDP's buckets. They are what its backward uses and no operation made; the sizes are known."""
        self._storages.see_buckets(values, category, DDP_BUCKETS, self._bucket_bytes)
        if operation == ddp.ALL_REDUCE:
            self._storages.tag_all(values, OTHER, over=(ACTIVATION, TEMPORARY))

    # -- categories -------------------------------------------------------------------------------------------------

    def _tag_model(self) -> None:
        for parameter in self._parameters:
            unsharded = self.sharded and not is_wrapper(parameter)
            self._storages.tag(parameter, UNSHARDED_PARAMETER if unsharded else self._parameter)
        for kept in self._fsdp_parameters():
            self._storages.tag_all(kept.sharded, SHARDED_PARAMETER)
            self._storages.tag_all(kept.unsharded, UNSHARDED_PARAMETER)
        for buffer in self.model.buffers():
            self._storages.tag(buffer, BUFFER, over=(OTHER,))
        self._tag_gradients()
        self._tag_optimizer_state()

    def _tag_gradients(self) -> None:
        seen: set[int] = set()
        in_optimizers = (p for o in self.optimizers for group in o.param_groups for p in group['params'])
        for parameter in (*self._parameters, *in_optimizers):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            gradient = parameter.grad
            if gradient is not None:
                unsharded = self.sharded and not is_wrapper(gradient)
                self._storages.tag(gradient, UNSHARDED_GRADIENT if unsharded else self._gradient)

        for kept in self._fsdp_parameters():
            self._storages.tag_all(kept.unsharded_gradients, UNSHARDED_GRADIENT)
            self._storages.tag_all(getattr(kept.sharded, 'grad', None), SHARDED_GRADIENT)

    def _fsdp_parameters(self) -> Iterator[FSDPParameter]:
        return fsdp_parameters(self.model) if self.sharded else iter(())

    def _tag_optimizer_state(self) -> None:
        for optimizer in self.optimizers:
            self._storages.tag_all(list(optimizer.state.values()), OPTIMIZER_STATE, over=_GUESSED)

    def _category_of_argument(self, operation: str) -> str:
        """The category of a tensor that no operation made, and that ``operation`` is the first to use."""
        if self._last_operation == fsdp.REDUCE_SCATTER:
            return REDUCE_SCATTER  # gloo makes a copy of its own
        if operation == _SET_STORAGE and not self._running.is_inside:
            return INPUT  # Composer copies each microbatch
        return OTHER

    def _tag_fsdp(self, name: str, arguments: Sequence[Any], keywords: dict[str, Any], result: Any) -> None:
        if name not in _FSDP_OPERATIONS:
            return
        tag_all = self._storages.tag_all
        if name == fsdp.ALL_GATHER_COPY_IN:
            tag_all(result, ALL_GATHER)
            tag_all(arguments, ALL_GATHER, over=_GUESSED)  # shards cast to the precision of the forward
        elif name == fsdp.ALL_GATHER_COPY_OUT:
            tag_all(keywords.get('out'), UNSHARDED_PARAMETER)
        elif name == fsdp.REDUCE_SCATTER_COPY_IN:
            tag_all(arguments, UNSHARDED_GRADIENT, over=_GUESSED)
            tag_all(keywords.get('out'), REDUCE_SCATTER)
        else:
            tag_all(arguments, REDUCE_SCATTER, over=_GUESSED)
