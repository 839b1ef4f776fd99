"""The records of one batch: storages that were saved, calls of modules, and what a graph keeps for a saved tensor."""

from __future__ import annotations

import time
from typing import Any, Optional, Protocol

from torch import Tensor

from composer_memprof.recorders.torch_private.saved_tensor_hooks import never_compile
from composer_memprof.signals import holds_signals

#: Kinds of storages. Those from ``ACTIVATION`` on are counted as held.
PARAMETER, BUFFER, INPUT, ACTIVATION, RECOMPUTED = range(5)

_now = time.perf_counter


class SavedStorage:
    """A storage that autograd holds or held. Only activations have more than the first four fields set."""

    __slots__ = ('kind', 'nbytes', 'operation', 'packs', 'refs', 'savers', 'tensor')

    def __init__(self, nbytes: int, kind: int, call: ModuleCall, tensor: tuple[Any, ...]) -> None:
        self.nbytes = nbytes
        self.kind = kind
        #: The calls that saved it, the first one first.
        self.savers = [call]
        #: How many times it was saved.
        self.packs = 0
        #: How many graphs' entries hold it now.
        self.refs = 0
        #: The name of the backward node that used it, as ``AddmmBackward0``.
        self.operation: Optional[str] = None
        #: dtype, shape and device of the tensor that was saved first.
        self.tensor = tensor


class ModuleCall:
    """One call of a module's forward. Number -1 stands for what runs outside of all modules."""

    __slots__ = ('began', 'ended', 'inputs', 'module', 'parent', 'recomputes')

    def __init__(self, module: int, parent: Optional[ModuleCall], recomputes: bool) -> None:
        self.module = module
        self.parent = parent
        #: True if a checkpoint runs it again.
        self.recomputes = recomputes
        #: Keys and bytes of the storages of its arguments.
        self.inputs: list[tuple[int, int]] = []
        #: Seconds, or CUDA events.
        self.began: Any = None
        self.ended: Any = None


class LiveBytes(Protocol):
    """The account that a hold is charged to: how many bytes autograd holds now, and how many it held when."""

    live: int
    #: False once the batch is over: its curve has ended.
    is_open: bool
    #: (seconds, live bytes)
    timeline: list[tuple[float, int]]


class Hold:
    """Kept by a graph while it holds a storage. When the graph drops it, the storage is held once less."""

    __slots__ = ('ledger', 'storage')

    def __init__(self, ledger: LiveBytes, storage: SavedStorage) -> None:
        self.ledger = ledger
        self.storage = storage

    @holds_signals
    def __del__(self) -> None:
        storage = self.storage
        storage.refs -= 1
        if not storage.refs and storage.kind >= ACTIVATION:
            ledger = self.ledger
            ledger.live -= storage.nbytes
            if ledger.is_open:
                ledger.timeline.append((_now(), ledger.live))


class SavedTensor(Hold):
    """What a graph keeps in place of a tensor, if the tensor's storage is counted while it is held."""

    __slots__ = ('is_first', 'more', 'payload', 'version')

    #: For a tensor made of several, the holds of the others.
    more: list[Hold]

    def __init__(self, ledger: LiveBytes, storage: SavedStorage, payload: Any, version: int, is_first: bool) -> None:
        self.ledger = ledger
        self.storage = storage
        self.payload = payload
        self.version = version
        #: True if no other tensor of the storage was saved before.
        self.is_first = is_first


class UncountedTensor:
    """What a graph keeps in place of a parameter, a buffer or an input, which exists anyway."""

    __slots__ = ('payload', 'version')

    def __init__(self, payload: Tensor, version: int) -> None:
        self.payload = payload
        self.version = version


never_compile(SavedStorage, ModuleCall, Hold, SavedTensor, UncountedTensor)
