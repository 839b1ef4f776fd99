"""The memory of a model's training, by category and by module: which tensors' storages live when, and what they are.

Every storage that an operation makes or uses is followed until it is freed. What it is, is often known only later (a
gradient is one when it is found in ``.grad``), so that the recorder keeps a log of storages and settles their
categories in it; peaks are found in the log when the recording is over (``memory_log``).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import nn

from composer_memprof.messages import warn
from composer_memprof.recorders import dispatch
from composer_memprof.recorders.modules.categories import CATEGORIES, FSDP2_CATEGORIES
from composer_memprof.recorders.modules.memory_log import MemoryLog
from composer_memprof.recorders.modules.model import check_model, find_root, is_fsdp2
from composer_memprof.recorders.modules.result import ModuleMemory
from composer_memprof.recorders.modules.running_module import RunningModule
from composer_memprof.recorders.tensors import parts_of, tensors_in

#: How a copied or unpickled tensor gets its storage.
_FILL = 'aten::set_'
_REDUCE_SCATTER = 'c10d::_reduce_scatter_base_'
_COPY_IN = 'fsdp::all_gather_copy_in'
_COPY_OUT = 'fsdp::split_with_sizes_copy'
_COPY_GRADS = 'fsdp::chunk_cat'
#: The operations from which FSDP2's memory is told apart.
_FSDP_OPERATIONS = frozenset({_REDUCE_SCATTER, _COPY_IN, _COPY_OUT, _COPY_GRADS})


class _Storage:
    """One storage, as long as it lives. ``block``: its present size's line in the log."""

    __slots__ = ('block', 'bytes', 'device', 'number', 'ref')

    def __init__(self, number: int, device: int) -> None:
        self.number = number
        self.device = device
        self.bytes = 0
        self.block = -1
        self.ref: Optional[_Reference] = None


class _Reference(weakref.ref):
    __slots__ = ('key', 'storage')
    key: int
    storage: _Storage


class ModuleMemoryRecorder:
    """Records the memory of ``model`` while it trains, on CPU or GPU.

    Plain, DDP and FSDP2 models. A ``with`` block takes forward and backward as they come; the optimizer's step has to
    be marked, since it may hold them (a closure). Training computes the same numbers as without.

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
        root_module (str, optional): dotted name of the module in ``model`` whose submodules are told apart. None:
            found by itself, the topmost that FSDP2 shards, else what DDP wraps, else ``model``.
        depth (int, optional): how deep below the root module the states of modules are kept, itself being 1. None: all.

    Raises:
        ValueError: for a model that can't be recorded: without parameters, FSDP1, without that root module.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer] = (),
        root_module: Optional[str] = None,
        depth: Optional[int] = None,
    ) -> None:
        check_model(model)
        self.depth = depth
        self.root_name = find_root(model, root_module)
        self.model = model
        self.optimizers = tuple(optimizers)
        self.sharded = any(is_fsdp2(module) for module in model.modules())
        #: What has gone wrong inside of an operation of the training; nothing is recorded after it.
        self.error: Optional[Exception] = None
        self.result: Optional[ModuleMemory] = None
        self._log: Optional[MemoryLog] = None
        self._known: dict[int, _Storage] = {}

    # -- a recording ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to record.

        Raises:
            RuntimeError: if a memory tracker of torch's own is active, or this recorder already is.
        """
        if self._log is not None:
            raise RuntimeError('this recorder is active already')
        theirs = dispatch.foreign_tracker()
        if theirs is not None:
            raise RuntimeError(f'another tracker is active, {theirs}; leave it before this one begins')
        names = FSDP2_CATEGORIES if self.sharded else CATEGORIES
        self._code = {name: code for code, name in enumerate(names)}
        self._params, self._grads = ('ShardedParam', 'ShardedGrad') if self.sharded else ('Parameter', 'Gradient')
        self._names: dict[Any, str] = {}
        self._last = ''
        self.error = self.result = None
        self._known = {}
        self._devices: dict[torch.device, int] = {}
        self._recomputing = False
        self._outside = False
        self._optimizing = False
        self._parameters = list(self.model.parameters())
        root = self.model.get_submodule(self.root_name)
        modules = list(root.named_modules())
        self._running = RunningModule([module for _, module in modules])
        self._log = MemoryLog(names, [(name, module) for name, module in modules], self.root_name)
        self._track_model()
        dispatch.listen(self)

    def stop(self) -> ModuleMemory:
        """End the recording; torch and the model are as before it.

        Raises:
            RuntimeError: if something went wrong inside of the recording.
        """
        dispatch.stop_listening(self)
        log, self._log = self._log, None
        if log is None:
            raise RuntimeError('this recorder is not active')
        try:
            if self.error is not None:
                raise RuntimeError(f'recording ended early: {self.error}') from self.error
            self._log = log
            self._track_gradients()
            self._track_optimizers()
            self._log = None
            self.result = log.read([str(device) for device in self._devices], self.depth)
            return self.result
        finally:
            self._forget()

    def cancel(self) -> None:
        """End the recording without a result."""
        dispatch.stop_listening(self)
        self._forget()

    def _forget(self) -> None:
        self._log = None
        self._known = {}
        self._parameters = []
        self._running = RunningModule([])

    def __enter__(self) -> ModuleMemoryRecorder:
        self.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:
            self.cancel()
            return
        try:
            self.stop()
        except Exception as ours:  # the training in the block was right
            warn(f'no module memory was recorded: {ours}')

    # -- phases -----------------------------------------------------------------------------------------------------

    def begin_batch(self, inputs: Any = None) -> None:
        """A batch, or one more microbatch, begins; ``inputs`` are its tensors, in any nesting."""
        if self._log is None:
            return
        if self._optimizing:
            self.end_optimizer()
        self._outside = False
        self.track_inputs(inputs)

    def track_inputs(self, inputs: Any) -> None:
        """Tensors that came from outside of the training step."""
        for tensor in tensors_in(inputs):
            self._tag(tensor, 'Inputs', over=('Other', 'Activation'))

    def end_backward(self) -> None:
        """A backward pass is over: what lies in ``.grad`` are gradients."""
        if self._log is not None:
            self._track_gradients()
            self._running.leave_all()

    def begin_optimizer(self) -> None:
        """Forward and backward are over, even if the optimizer's ``step`` has been entered long before."""
        if self._log is None:
            return
        self._track_gradients()
        self._optimizing = True
        self._log.begin_phase('optimizer')

    def end_optimizer(self) -> None:
        """The optimizer's step is over; its state is what it has kept."""
        if self._log is None:
            return
        self._optimizing = False
        self._track_optimizers()
        self._log.begin_phase('between batches')

    def end_batch(self) -> None:
        """What is made from here on is no part of the training step (metrics, callbacks, the next batch's data)."""
        if self._log is None:
            return
        if self._optimizing:
            self.end_optimizer()
        self._outside = True
        self._log.begin_phase('between batches')

    # -- what dispatch tells ----------------------------------------------------------------------------------------

    def operated(self, operation: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        log = self._log
        if log is None:
            return
        log.tick += 1
        if self._outside:
            category = 'Other'
        elif self._optimizing:
            category = 'Temp'
        elif dispatch.in_backward():
            # A backward pass runs without gradients; where they are on, a checkpointed forward is run again.
            self._recomputing = torch.is_grad_enabled()
            category = 'Activation' if self._recomputing else 'Temp'
            log.begin_phase('backward')
            log.module = self._running.current()
            if not self._running.is_inside:
                log.mark_backward()
        else:
            self._recomputing = False
            category = 'Activation'
            log.begin_phase('forward')
            log.module = self._running.current()
        name = self._names.get(operation)
        if name is None:
            name = self._names[operation] = _name_of(operation)
        found = self._category_of_found(name)
        for value in arguments:
            self._see_all(value, found)
        for value in keywords.values():
            self._see_all(value, found)
        self._see_all(result, category)
        if self.sharded:
            self._see_fsdp(name, arguments, keywords, result)
        self._last = name

    def resized(self, storage: torch.UntypedStorage) -> None:
        log = self._log
        if log is None:
            return
        known = self._known.get(storage._cdata)
        if known is None:
            known = self._follow(storage, storage.device, 'Other')
        if known is not None:
            self._set_size(known, storage.nbytes(), log.tick + 1)

    def entered(self, module: nn.Module) -> None:
        number = self._running.enter(module)
        if number is not None and self._log is not None:
            self._log.mark(number, 'Pre-Forward-AC' if dispatch.in_backward() else 'Pre-Forward')

    def left(self, module: nn.Module) -> None:
        number = self._running.leave(module)
        if number is not None and self._log is not None:
            self._log.mark(number, 'Post-Forward-AC' if dispatch.in_backward() else 'Post-Forward')

    def failed(self, error: Exception) -> None:
        self.error = error

    # -- what is what -----------------------------------------------------------------------------------------------

    def _track_model(self) -> None:
        for parameter in self._parameters:
            self._tag(parameter, self._parameter_category(parameter))
        for buffer in self.model.buffers():
            self._tag(buffer, 'Buffer', over=('Other',))
        self._track_gradients()
        self._track_optimizers()

    def _parameter_category(self, parameter: torch.Tensor) -> str:
        return 'UnshardedParam' if self.sharded and not _is_wrapper(parameter) else self._params

    def _track_gradients(self) -> None:
        seen: set[int] = set()
        in_optimizers = (p for o in self.optimizers for group in o.param_groups for p in group['params'])
        for parameter in (*self._parameters, *in_optimizers):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            gradient = parameter.grad
            if gradient is not None:
                plain = self.sharded and not _is_wrapper(gradient)
                self._tag(gradient, 'UnshardedGrad' if plain else self._grads)

    def _track_optimizers(self) -> None:
        for optimizer in self.optimizers:
            for tensor in tensors_in(list(optimizer.state.values())):
                self._tag(tensor, 'OptState', over=('Other', 'Temp', 'Activation'))

    def _category_of_found(self, name: str) -> str:
        """Of a tensor that no operation has made, and that is first met as an argument of this one."""
        if self._last == _REDUCE_SCATTER:
            return 'ReduceScatter'  # where the backend has made a copy of its own (gloo)
        if name == _FILL and not self._running.is_inside:
            return 'Inputs'  # Composer copies each microbatch
        return 'Other'

    def _see_fsdp(self, name: str, arguments: Sequence[Any], keywords: dict[str, Any], result: Any) -> None:
        if name not in _FSDP_OPERATIONS:
            return
        passing = ('Other', 'Temp', 'Activation')
        if name == _COPY_IN:
            self._tag_all(result, 'AllGather')
            self._tag_all(arguments, 'AllGather', over=passing)  # shards cast to the precision of the forward
        elif name == _COPY_OUT:
            self._tag_all(keywords.get('out'), 'UnshardedParam')
        elif name == _COPY_GRADS:
            self._tag_all(arguments, 'UnshardedGrad', over=passing)
            self._tag_all(keywords.get('out'), 'ReduceScatter')
        else:
            self._tag_all(arguments, 'ReduceScatter', over=passing)

    def _tag_all(self, values: Any, category: str, over: Sequence[str] = ()) -> None:
        for tensor in tensors_in(values):
            self._tag(tensor, category, over)

    def _tag(self, tensor: torch.Tensor, category: str, over: Sequence[str] = ()) -> None:
        """The tensor's storages are of ``category``, and were from their making; ``over``: if of one of these so far."""
        log = self._log
        if log is None:
            return
        for part in parts_of(tensor):
            storage = self._see(part, category)
            if storage is not None and (not over or log.names[log.categories[storage.number]] in over):
                log.categories[storage.number] = self._code[category]

    # -- storages ---------------------------------------------------------------------------------------------------

    def _see_all(self, value: Any, category: str) -> None:
        if isinstance(value, torch.Tensor):
            if not self._is_known(value):
                for part in parts_of(value):
                    self._see(part, category)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self._see_all(item, category)
        elif isinstance(value, dict):
            for item in value.values():
                self._see_all(item, category)

    def _is_known(self, tensor: torch.Tensor) -> bool:
        try:
            storage = tensor.untyped_storage()
            known = self._known.get(storage._cdata)
            return known is not None and known.bytes == storage.nbytes()
        except (NotImplementedError, RuntimeError):  # a tensor without a storage of its own
            return False

    def _see(self, tensor: torch.Tensor, category: str) -> Optional[_Storage]:
        """Follow the tensor's storage, of ``category`` if it is new."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return None
        known = self._known.get(storage._cdata)
        if known is None:
            return self._follow(storage, tensor.device, category)
        if known.bytes != storage.nbytes():
            assert self._log is not None
            self._set_size(known, storage.nbytes(), self._log.tick)
        return known

    def _follow(self, storage: torch.UntypedStorage, device: torch.device, category: str) -> Optional[_Storage]:
        log = self._log
        if log is None or device.type == 'meta':
            return None
        number = self._devices.get(device)
        if number is None:
            number = self._devices[device] = len(self._devices)
        log.categories.append(self._code[category])
        known = _Storage(len(log.categories) - 1, number)
        reference = _Reference(storage, self._freed)
        reference.key, reference.storage = storage._cdata, known
        known.ref = reference
        self._known[reference.key] = known
        self._set_size(known, storage.nbytes(), log.tick)
        return known

    def _freed(self, reference: weakref.ref) -> None:
        assert isinstance(reference, _Reference)
        log = self._log
        if log is None or self._known.get(reference.key) is not reference.storage:
            return
        del self._known[reference.key]
        self._set_size(reference.storage, 0, log.tick + 1)

    def _set_size(self, storage: _Storage, size: int, tick: int) -> None:
        log = self._log
        assert log is not None
        if storage.bytes:
            log.close(storage.block, tick)
        storage.bytes = size
        if size:
            storage.block = log.open(storage.number, storage.device, size, tick)


def _name_of(operation: Any) -> str:
    schema = getattr(operation, '_schema', None)
    return '' if schema is None else schema.name


def _is_wrapper(tensor: torch.Tensor) -> bool:
    return hasattr(type(tensor), '__tensor_flatten__') or hasattr(tensor, '_local_tensor')
