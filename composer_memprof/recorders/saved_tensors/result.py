"""What autograd kept for the backward pass of a batch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Optional


@dataclass(frozen=True)
class ModuleBytes:
    """Of one module, by its dotted name; the root's is ``''``.

    Args:
        name (str): dotted.
        type (str): its class.
        bytes (int): of storages that it saved first, and none of its submodules.
        inclusive_bytes (int): its submodules' too.
        parameter_bytes (int): of parameters that it saved first.
        storages (int): how many make up ``bytes``.
        packs (int): saves of these, also by others.
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
    """Of the backward nodes of one name, as ``AddmmBackward0``."""

    name: str
    bytes: int
    storages: int
    packs: int


@dataclass(frozen=True)
class ShapeBytes:
    """Of the tensors of one dtype and shape, as they were saved first; ``bytes`` are of their whole storages."""

    dtype: str
    shape: tuple[int, ...]
    device: str
    bytes: int
    storages: int


@dataclass(frozen=True)
class Checkpoint:
    """What checkpointing one module would do.

    Args:
        name (str): of the module.
        type (str): its class.
        frees_bytes (int): what only it and its submodules saved, without its inputs; less those of its inputs that
            nobody keeps now.
        recompute_ms (float): of its forward pass as measured, hooks included, all calls: about what one more costs.
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
    """What autograd kept in the batch of a window in which it kept most.

    Args:
        total_bytes (int): of storages that are neither the model's nor inputs, each once; each list sums to it.
        peak_bytes (int): of them, held at one time; recomputed ones included.
        parameter_bytes (int): of parameters that were saved.
        buffer_bytes (int): of buffers that were saved.
        input_bytes (int): of the batch's tensors that were saved.
        packed_bytes (int): of all saves that are no ``Parameter``, as finetuning-scheduler counts them.
        recomputed_bytes (int): saved in the backward pass, by checkpoints that run the forward pass again.
        left_bytes (int): still held when the batch was over.
        largest_batch (int): the batch that is told of.
        forwards (int): calls of the model in it.
        modules (list): by bytes, the largest first; so ``operations`` and ``shapes``.
        checkpoints (list): modules by the bytes that checkpointing each would free.
        live (list): (milliseconds, live bytes) over the batch.
        batches (list): all of the window's.
        unseen (dict): what could not be seen, with the modules that it is about.
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
        """As it is written to JSON."""
        return asdict(self)
