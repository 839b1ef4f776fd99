"""What autograd kept for the backward pass of a batch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Optional


@dataclass(frozen=True)
class ModuleBytes:
    """What one module saved.

    Args:
        name (str): dotted; the root's is ``''``.
        type (str): its class.
        bytes (int): of storages that the module itself saved first, not a submodule.
        inclusive_bytes (int): of those that it or a submodule saved first.
        parameter_bytes (int): of parameters that it saved first.
        storages (int): number of storages in ``bytes``.
        packs (int): how often these were saved, by any module.
        calls (int): of its forward.
    """

    name: str
    type: str
    bytes: int
    inclusive_bytes: int
    parameter_bytes: int
    storages: int
    packs: int
    calls: int


@dataclass(frozen=True)
class OperationBytes:
    """What the backward nodes of one name saved, as ``AddmmBackward0``."""

    name: str
    bytes: int
    storages: int
    packs: int


@dataclass(frozen=True)
class ShapeBytes:
    """Storages by dtype and shape of the tensor that was saved first; ``bytes`` are of whole storages."""

    dtype: str
    shape: tuple[int, ...]
    device: str
    bytes: int
    storages: int


@dataclass(frozen=True)
class Checkpoint:
    """The effect of checkpointing one module.

    Args:
        name (str): of the module.
        type (str): its class.
        frees_bytes (int): of storages that only the module and its submodules saved, without its inputs; less the bytes
            of inputs that nothing keeps without a checkpoint.
        recompute_ms (float): about the time that running its forward again takes: that of all calls in this batch.
    """

    name: str
    type: str
    frees_bytes: int
    recompute_ms: float


@dataclass(frozen=True)
class BatchBytes:
    """One batch of a window, in bytes."""

    batch: int
    total_bytes: int
    peak_bytes: int
    packed_bytes: int
    forwards: int


@dataclass(frozen=True)
class SavedTensors:
    """What autograd kept in the largest batch of a window: the one with most ``total_bytes``.

    Args:
        total_bytes (int): of storages that are no parameters, buffers or inputs, each once; each list sums to it.
        peak_bytes (int): the most of them held at one time, recomputed ones included.
        parameter_bytes (int): of parameters that were saved.
        buffer_bytes (int): of buffers that were saved.
        input_bytes (int): of the batch's tensors that were saved.
        packed_bytes (int): of every save of a tensor that is no ``Parameter``, as finetuning-scheduler counts.
        recomputed_bytes (int): saved in the backward pass, by checkpoints that run the forward pass again.
        left_bytes (int): still held when the batch ended.
        largest_batch (int): its number.
        forwards (int): calls of the model in it.
        modules (list): the largest first.
        operations (list): the largest first.
        shapes (list): the largest first.
        checkpoints (list): modules, the one whose checkpoint frees most first.
        live (list): (milliseconds, live bytes) over the batch.
        batches (list): every batch of the window.
        unseen (dict): what could not be seen, with the names of the modules concerned.
    """

    total_bytes: int
    peak_bytes: int
    parameter_bytes: int
    buffer_bytes: int
    input_bytes: int
    packed_bytes: int
    recomputed_bytes: int
    left_bytes: int
    largest_batch: Optional[int]
    forwards: int
    modules: list[ModuleBytes]
    operations: list[OperationBytes]
    shapes: list[ShapeBytes]
    checkpoints: list[Checkpoint]
    live: list[tuple[float, int]]
    batches: list[BatchBytes]
    unseen: dict[str, list[str]]

    def as_dict(self) -> dict[str, Any]:
        """As written to JSON."""
        return asdict(self)
