"""The storages that autograd holds in one batch: who saved each first, and when autograd releases it.

Each tensor that a forward pass saves goes through this module, so its code is kept short.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn import Parameter

from composer_memprof.recorders.saved_tensors.gathered import GatheredParameters
from composer_memprof.recorders.saved_tensors.saved_storages import (
    ACTIVATION,
    BUFFER,
    INPUT,
    PARAMETER,
    RECOMPUTED,
    Hold,
    ModuleCall,
    SavedStorage,
    SavedTensor,
    UncountedTensor,
)
from composer_memprof.recorders.tensors import items_in, parts_of, tensors_in
from composer_memprof.recorders.torch_private.custom_functions import APPLY_CODE, function_name
from composer_memprof.recorders.torch_private.graph_tasks import current_autograd_node, current_graph_task_id
from composer_memprof.recorders.torch_private.saved_tensor_hooks import never_compile
from composer_memprof.recorders.torch_private.tensors import base_of, cdata_of, inner_tensors, version_of
from composer_memprof.signals import holds_signals

_now = time.perf_counter


class _StorageIdentity(weakref.ref):
    """Tells a storage from a later one at the same address. ``key`` is the storage's own.

    Refers to Python's object, which torch keeps for as long as the storage lives (torch 2.7). One of torch's own weak
    references would keep that object, and what refers to it, after the memory is freed.
    """

    __slots__ = ('key',)
    key: int


class Ledger:
    """Counts the storages of one batch.

    Args:
        model (Module): its parameters and buffers are not counted as activations.
        functions (tuple, optional): pack and unpack, in place of detaching.
    """

    def __init__(
        self, model: torch.nn.Module, functions: Optional[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = None
    ) -> None:
        self.functions = functions
        self.storages: dict[int, SavedStorage] = {}
        #: Bytes of activations and recomputed storages that autograd holds now, and the most it held.
        self.live = 0
        self.peak = 0
        #: Bytes of activations.
        self.total = 0
        self.packed_bytes = 0
        #: (seconds, live bytes)
        self.timeline: list[tuple[float, int]] = [(_now(), 0)]
        self.outside = ModuleCall(-1, None, False)
        self.calls: list[ModuleCall] = []
        #: The innermost call that runs now.
        self.call = self.outside
        self.is_open = True
        #: Why tensors were not seen, and in which modules.
        self.unseen: dict[str, set[str]] = {}
        self.error: Optional[BaseException] = None
        #: Where parameters are found that FSDP2 gathers inside of compiled code.
        self.gathered: Optional[GatheredParameters] = None
        self.left_bytes = 0
        self._identities: dict[int, _StorageIdentity] = {}
        self._keys = 0
        self._kinds: dict[int, int] = {}
        self._mark(model.buffers(), BUFFER)
        self._mark(model.parameters(), PARAMETER)

    # -- hooks --------------------------------------------------------------------------------------------------

    @holds_signals
    def pack(self, tensor: Tensor) -> Any:
        """Autograd keeps what this returns in place of ``tensor``. Never raises."""
        try:
            kind = type(tensor)
            if self.functions is not None:
                return self._pack_with_functions(tensor)
            if kind is not Tensor and kind is not Parameter:
                return self._pack_parts(tensor, tensor.detach())
            storage: Any = tensor.untyped_storage()
            identity = self._identities.get(cdata_of(storage))
            key = identity.key if identity is not None and identity() is storage else self._new_key(storage)
            known = self.storages.get(key)
            is_first = known is None
            if known is None:
                known = self._add_storage(tensor, storage, key)
            if kind is Tensor:
                self.packed_bytes += tensor.nbytes
            # Keeping the tensor itself would keep the graph behind it alive; without a gradient it has none.
            payload = tensor.detach() if tensor.requires_grad else tensor
            if known.kind < ACTIVATION:
                return UncountedTensor(payload, version_of(tensor))
            call = self.call
            if known.savers[-1] is not call:
                known.savers.append(call)
            known.packs += 1
            if known.refs:
                known.refs += 1
            else:
                self._begin_to_hold(known)
            return SavedTensor(self, known, payload, version_of(tensor), is_first)
        except NotImplementedError:  # a sparse tensor has no storage of its own
            return self._pack_sparse(tensor)
        except Exception as error:
            self.error = self.error or error
            return tensor.detach()

    def _pack_sparse(self, tensor: Tensor) -> Any:
        try:
            return self._pack_parts(tensor, tensor.detach())
        except Exception as error:
            self.error = self.error or error
            return tensor.detach()

    @holds_signals
    def unpack(self, saved: Any) -> Any:
        """What the backward pass gets.

        Raises:
            RuntimeError: for a tensor that was modified in place since it was saved. Autograd itself checks this only
                where there are no hooks.
        """
        kind = type(saved)
        if kind is SavedTensor:
            if saved.is_first:
                saved.is_first = False
                if saved.storage.operation is None:
                    saved.storage.operation = type(current_autograd_node()).__name__
            if self.functions is not None:
                return self.functions[1](saved.payload)
        elif kind is not UncountedTensor:
            return saved
        payload = saved.payload
        if version_of(payload) != saved.version:
            raise RuntimeError(_modified_in_place(payload, saved.version))
        return payload

    def _begin_to_hold(self, storage: SavedStorage) -> None:
        """Count a storage that autograd did not hold before."""
        storage.refs = 1
        if storage.kind >= ACTIVATION:
            live = self.live = self.live + storage.nbytes
            if live > self.peak:
                self.peak = live
            if self.is_open:
                self.timeline.append((_now(), live))

    def _add_storage(self, tensor: Tensor, storage: Any, key: int) -> SavedStorage:
        """Add a storage that is saved for the first time. Only for functions that autograd calls: it reads the stack."""
        kind = self._kinds.get(key)
        call = self.call
        nbytes = storage.nbytes()
        if kind is None:
            # Parameters that exist during the forward pass only, as those that FSDP gathers, or views of them.
            base = tensor if type(tensor) is not Tensor else base_of(tensor)
            if (base is not None and isinstance(base, Parameter)) or self._is_newly_gathered(key):
                kind = PARAMETER
            elif call.recomputes or (call is self.outside and current_graph_task_id() != -1 and _inside_checkpoint()):
                kind = RECOMPUTED
            else:
                kind = ACTIVATION
                self.total += nbytes
        if kind < ACTIVATION:
            known = self.storages[key] = SavedStorage(nbytes, kind, call, ())
            return known
        known = self.storages[key] = SavedStorage(nbytes, kind, call, (tensor.dtype, tensor.shape, tensor.device))
        # A custom Function's name is on the stack while it saves. In the backward pass its node may not be the one
        # that runs: a checkpoint reads what it saved while another node runs.
        frame = sys._getframe(2)
        if frame.f_code is APPLY_CODE:
            known.operation = f'{function_name(frame)}Backward'
        return known

    def _pack_parts(self, tensor: Tensor, payload: Any) -> SavedTensor:
        """Save a tensor that consists of others (a DTensor, say): hold each of their storages."""
        holds: list[Hold] = []
        saved: Optional[SavedTensor] = None
        is_parameter = isinstance(tensor, Parameter)
        for part in parts_of(tensor):
            storage = part.untyped_storage()
            key = self._key_of(storage)
            known = self.storages.get(key)
            is_first = known is None
            if known is None:
                if is_parameter:
                    self._kinds.setdefault(key, PARAMETER)
                known = self._add_storage(part, storage, key)
            elif known.savers[-1] is not self.call:
                known.savers.append(self.call)
            known.packs += 1
            if known.refs:
                known.refs += 1
            else:
                self._begin_to_hold(known)
            if saved is None:
                saved = SavedTensor(self, known, payload, version_of(tensor), is_first)
            else:
                holds.append(Hold(self, known))
            if not is_parameter:
                self.packed_bytes += part.nbytes
        if saved is None:
            raise TypeError(f'a {type(tensor).__name__} that consists of no tensor')
        saved.more = holds
        return saved

    def _pack_with_functions(self, tensor: Tensor) -> Any:
        assert self.functions is not None
        try:
            payload = self.functions[0](tensor)
        except Exception as error:
            self.error = self.error or error
            return tensor.detach()
        if payload is tensor:
            payload = tensor.detach()
        if not isinstance(tensor, Parameter):
            self.packed_bytes += tensor.nbytes
        # Count what the function returned, an offloaded copy for example.
        kept = next(tensors_in(payload), tensor)
        counted = self.packed_bytes
        saved = self._pack_parts(kept, payload)
        self.packed_bytes = counted
        return saved

    # -- storages -----------------------------------------------------------------------------------------------

    def add_inputs(self, batch: Any) -> None:
        """Count the tensors in ``batch`` as inputs."""
        self._mark(tensors_in(batch), INPUT)

    def mark_parameters(self, parameters: Iterable[Tensor]) -> None:
        """Count ``parameters``, which FSDP2 has just gathered, as parameters."""
        self._mark(parameters, PARAMETER)

    def _is_newly_gathered(self, key: int) -> bool:
        if self.gathered is None:
            return False
        self._mark(self.gathered.new(), PARAMETER)
        return self._kinds.get(key) == PARAMETER

    def note_arguments(self, call: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the storages of a call's arguments, which a checkpoint of the module would keep."""
        for value in (*args, *kwargs.values()) if kwargs else args:
            if type(value) is Tensor:
                self._note_argument(call, value)
            elif isinstance(value, (tuple, list, dict)):
                for tensor in tensors_in(value, depth=2):
                    if type(tensor) is Tensor:
                        self._note_argument(call, tensor)

    def _note_argument(self, call: ModuleCall, tensor: Tensor) -> None:
        storage: Any = tensor.untyped_storage()
        key = self._key_of(storage)
        call.inputs.append((key, storage.nbytes()))

    def kind_of(self, key: int) -> int:
        """The kind of the storage with that key."""
        known = self.storages.get(key)
        return known.kind if known is not None else self._kinds.get(key, ACTIVATION)

    def _mark(self, tensors: Iterable[Tensor], kind: int) -> None:
        for tensor in tensors:
            if type(tensor) is Tensor or type(tensor) is Parameter:
                self._mark_one(tensor, kind)
            else:
                for part in parts_of(tensor):
                    self._mark_one(part, kind)

    def _mark_one(self, tensor: Tensor, kind: int) -> None:
        try:
            storage: Any = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError, ValueError):  # sparse
            return
        key = self._key_of(storage)
        if kind != INPUT or key not in self._kinds:
            self._kinds[key] = kind

    def _key_of(self, storage: Any) -> int:
        identity = self._identities.get(cdata_of(storage))
        return identity.key if identity is not None and identity() is storage else self._new_key(storage)

    def _new_key(self, storage: Any) -> int:
        identity = self._identities[cdata_of(storage)] = _StorageIdentity(storage)
        self._keys = identity.key = self._keys + 1
        return identity.key

    def close(self) -> None:
        """The batch ended. Graphs that live on still unpack what they saved."""
        self.is_open = False
        self.left_bytes = self.live
        self._identities = {}


def _inside_checkpoint() -> bool:
    """True if the backward node that runs now is a reentrant checkpoint's."""
    return 'Checkpoint' in type(current_autograd_node()).__name__


def _modified_in_place(tensor: Tensor, version: int) -> str:
    return (
        'one of the variables needed for gradient computation has been modified by an inplace operation: '
        f'[{tensor.type()} {list(tensor.shape)}] is at version {version_of(tensor)}; expected version {version} '
        'instead. Hint: enable anomaly detection to find the operation that failed to compute its gradient, with '
        'torch.autograd.set_detect_anomaly(True).'
    )


never_compile(Ledger)
never_compile(_inside_checkpoint, parts_of, inner_tensors, tensors_in, items_in, function_name)
never_compile(_modified_in_place)
