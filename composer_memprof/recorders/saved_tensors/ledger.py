"""The books of one batch: which storages autograd holds, who saved them first, and when it let them go.

Everything on the way of a forward pass is here, and kept short.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Optional

import torch
from torch import Tensor
from torch._dynamo.eval_frame import skip_code
from torch.nn import Parameter

from composer_memprof.recorders.tensors import items_in, parts_of, tensors_in

PARAMETER, BUFFER, INPUT, ACTIVATION, RECOMPUTED = range(5)

_FUNCTION_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]

_now = time.perf_counter
_graph_task = torch._C._current_graph_task_id  # -1 outside of a backward pass
_node = torch._C._current_autograd_node


class _Identity(weakref.ref):
    """Which storage an address stands for: of one that is gone, the address may be another's.

    By Python's own object, which torch keeps for as long as the storage lives (checked on 2.7). A weak reference of
    torch's would keep that object, and others' references to it, after the memory is given back.
    """

    __slots__ = ('key',)
    key: int


class Storage:
    """A storage that autograd has held, or holds. Of what is no activation, no more is known than the first four."""

    __slots__ = ('kind', 'nbytes', 'operation', 'packs', 'refs', 'savers', 'tensor')

    def __init__(self, nbytes: int, kind: int, call: Call, tensor: tuple[Any, ...]) -> None:
        self.nbytes = nbytes
        self.kind = kind
        #: The calls that saved it, the first one first.
        self.savers = [call]
        self.packs = 0
        self.refs = 0
        self.operation: Optional[str] = None
        #: dtype, shape and device of the tensor that was saved first.
        self.tensor = tensor


class Call:
    """One call of a module, or what lies outside of all."""

    __slots__ = ('began', 'ended', 'inputs', 'module', 'parent', 'recomputes')

    def __init__(self, module: int, parent: Optional[Call], recomputes: bool) -> None:
        self.module = module
        self.parent = parent
        self.recomputes = recomputes
        #: Keys and bytes of the storages that it was given.
        self.inputs: list[tuple[int, int]] = []
        self.began: Any = None
        self.ended: Any = None


class Hold:
    """Part of what a graph keeps; once the graph lets go of it, the storage is held once less."""

    __slots__ = ('ledger', 'storage')

    def __init__(self, ledger: Ledger, storage: Storage) -> None:
        self.ledger = ledger
        self.storage = storage

    def __del__(self) -> None:
        storage = self.storage
        storage.refs -= 1
        if not storage.refs and storage.kind >= ACTIVATION:
            ledger = self.ledger
            ledger.live -= storage.nbytes
            if ledger.is_open:
                ledger.timeline.append((_now(), ledger.live))


class Saved(Hold):
    """What a graph keeps in place of a tensor whose storage is counted while it is held."""

    __slots__ = ('is_first', 'more', 'payload', 'version')

    #: Of a tensor made of several: the further ones.
    more: list[Hold]

    def __init__(self, ledger: Ledger, storage: Storage, payload: Any, version: int, is_first: bool) -> None:
        self.ledger = ledger
        self.storage = storage
        self.payload = payload
        self.version = version
        self.is_first = is_first


class SavedOfModel:
    """What a graph keeps in place of a tensor that is there anyway: a parameter, a buffer, an input."""

    __slots__ = ('payload', 'version')

    def __init__(self, payload: Tensor, version: int) -> None:
        self.payload = payload
        self.version = version


class Ledger:
    """What is known of one batch.

    Args:
        model (Module): whose parameters and buffers are told apart.
        functions (tuple, optional): pack and unpack, in place of detaching.
    """

    def __init__(
        self, model: torch.nn.Module, functions: Optional[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = None
    ) -> None:
        self.functions = functions
        self.storages: dict[int, Storage] = {}
        self.live = 0
        self.peak = 0
        self.total = 0
        self.packed_bytes = 0
        self.timeline: list[tuple[float, int]] = [(_now(), 0)]
        self.outside = Call(-1, None, False)
        self.calls: list[Call] = []
        self.call = self.outside
        self.is_open = True
        self.unseen: dict[str, set[str]] = {}
        self.error: Optional[BaseException] = None
        self.left_bytes = 0
        self._identities: dict[int, _Identity] = {}
        self._keys = 0
        self._kinds: dict[int, int] = {}
        self._mark(model.buffers(), BUFFER)
        self._mark(model.parameters(), PARAMETER)

    # -- hooks --------------------------------------------------------------------------------------------------

    def pack(self, tensor: Tensor) -> Any:
        """Autograd keeps what this returns, in place of ``tensor``. Never raises."""
        try:
            kind = type(tensor)
            if self.functions is not None:
                return self._pack_with_functions(tensor)
            if kind is not Tensor and kind is not Parameter:
                return self._pack_parts(tensor, tensor.detach())
            storage: Any = tensor.untyped_storage()
            identity = self._identities.get(storage._cdata)
            key = identity.key if identity is not None and identity() is storage else self._new_key(storage)
            known = self.storages.get(key)
            is_first = known is None
            if known is None:
                known = self._open_account(tensor, storage, key)
            if kind is Tensor:
                self.packed_bytes += tensor.nbytes
            # Without a gradient there is no graph behind it that it could keep alive.
            payload = tensor.detach() if tensor.requires_grad else tensor
            if known.kind < ACTIVATION:
                return SavedOfModel(payload, tensor._version)
            call = self.call
            if known.savers[-1] is not call:
                known.savers.append(call)
            known.packs += 1
            if known.refs:
                known.refs += 1
            else:
                self._hold_again(known)
            return Saved(self, known, payload, tensor._version, is_first)
        except NotImplementedError:  # a sparse tensor has no storage of its own
            return self._pack_what_is_odd(tensor)
        except Exception as error:
            self.error = self.error or error
            return tensor.detach()

    def _pack_what_is_odd(self, tensor: Tensor) -> Any:
        try:
            return self._pack_parts(tensor, tensor.detach())
        except Exception as error:
            self.error = self.error or error
            return tensor.detach()

    def unpack(self, saved: Any) -> Any:
        """What the backward pass gets.

        Raises:
            RuntimeError: as autograd itself, which does not look where there are hooks, for a tensor that was modified
                in place since it was saved.
        """
        kind = type(saved)
        if kind is Saved:
            if saved.is_first:
                saved.is_first = False
                if saved.storage.operation is None:
                    saved.storage.operation = type(_node()).__name__
            if self.functions is not None:
                return self.functions[1](saved.payload)
        elif kind is not SavedOfModel:
            return saved
        payload = saved.payload
        if payload._version != saved.version:
            raise RuntimeError(_modified_in_place(payload, saved.version))
        return payload

    def _hold_again(self, storage: Storage) -> None:
        """Autograd holds a storage that it did not hold."""
        storage.refs = 1
        if storage.kind >= ACTIVATION:
            live = self.live = self.live + storage.nbytes
            if live > self.peak:
                self.peak = live
            if self.is_open:
                self.timeline.append((_now(), live))

    def _open_account(self, tensor: Tensor, storage: Any, key: int) -> Storage:
        """Take up a storage that is saved for the first time. Called by what autograd calls."""
        kind = self._kinds.get(key)
        call = self.call
        nbytes = storage.nbytes()
        if kind is None:
            # Parameters that are there during the forward pass only, as those gathered by FSDP, or views of them.
            base = tensor if type(tensor) is not Tensor else tensor._base
            if base is not None and isinstance(base, Parameter):
                kind = PARAMETER
            elif call.recomputes or (call is self.outside and _graph_task() != -1 and _inside_checkpoint()):
                kind = RECOMPUTED
            else:
                kind = ACTIVATION
                self.total += nbytes
        if kind < ACTIVATION:
            known = self.storages[key] = Storage(nbytes, kind, call, ())
            return known
        known = self.storages[key] = Storage(nbytes, kind, call, (tensor.dtype, tensor.shape, tensor.device))
        # Of a custom Function the name is on the stack when it saves. Its node's own may be another by the time of the
        # backward pass: a checkpoint reads what it saved while another node runs.
        frame = sys._getframe(2)
        if frame.f_code is _FUNCTION_APPLY:
            known.operation = f'{frame.f_locals["cls"].__name__}Backward'
        return known

    def _pack_parts(self, tensor: Tensor, payload: Any) -> Saved:
        """A tensor made of others (a DTensor, say): each of their storages is held."""
        holds: list[Hold] = []
        saved: Optional[Saved] = None
        is_parameter = isinstance(tensor, Parameter)
        for part in parts_of(tensor):
            storage = part.untyped_storage()
            key = self._key_of(storage)
            known = self.storages.get(key)
            is_first = known is None
            if known is None:
                if is_parameter:
                    self._kinds.setdefault(key, PARAMETER)
                known = self._open_account(part, storage, key)
            elif known.savers[-1] is not self.call:
                known.savers.append(self.call)
            known.packs += 1
            if known.refs:
                known.refs += 1
            else:
                self._hold_again(known)
            if saved is None:
                saved = Saved(self, known, payload, tensor._version, is_first)
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
        # What is kept is what the function made of it: an offloaded copy, say.
        kept = next(tensors_in(payload), tensor)
        counted = self.packed_bytes
        saved = self._pack_parts(kept, payload)
        self.packed_bytes = counted
        return saved

    # -- storages -----------------------------------------------------------------------------------------------

    def add_inputs(self, batch: Any) -> None:
        """The tensors in ``batch`` are inputs."""
        self._mark(tensors_in(batch), INPUT)

    def note_arguments(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What a call was given, which a checkpoint of it would have to keep."""
        for value in (*args, *kwargs.values()) if kwargs else args:
            if type(value) is Tensor:
                self._note_argument(call, value)
            elif isinstance(value, (tuple, list, dict)):
                for tensor in tensors_in(value, depth=2):
                    if type(tensor) is Tensor:
                        self._note_argument(call, tensor)

    def _note_argument(self, call: Call, tensor: Tensor) -> None:
        storage: Any = tensor.untyped_storage()
        key = self._key_of(storage)
        call.inputs.append((key, storage.nbytes()))

    def kind_of(self, key: int) -> int:
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
        identity = self._identities.get(storage._cdata)
        return identity.key if identity is not None and identity() is storage else self._new_key(storage)

    def _new_key(self, storage: Any) -> int:
        identity = self._identities[storage._cdata] = _Identity(storage)
        self._keys = identity.key = self._keys + 1
        return identity.key

    def close(self) -> None:
        """The batch is over. What graphs still keep goes on to be given back when they ask."""
        self.is_open = False
        self.left_bytes = self.live
        self._identities = {}


def _inside_checkpoint() -> bool:
    """Whether the node whose backward runs now is that of a reentrant checkpoint."""
    return 'Checkpoint' in type(_node()).__name__


def _modified_in_place(tensor: Tensor, version: int) -> str:
    return (
        'one of the variables needed for gradient computation has been modified by an inplace operation: '
        f'[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version {version} instead. '
        'Hint: enable anomaly detection to find the operation that failed to compute its gradient, with '
        'torch.autograd.set_detect_anomaly(True).'
    )


def _never_compile(*owners: Any) -> None:
    """torch.compile is not to look into what autograd calls from within a compiled module."""
    for owner in owners:
        for function in vars(owner).values() if isinstance(owner, type) else (owner,):
            if hasattr(function, '__code__'):
                skip_code(function.__code__)


_never_compile(Storage, Call, Hold, Saved, SavedOfModel, Ledger)
_never_compile(_inside_checkpoint, parts_of, tensors_in, items_in, _modified_in_place)
