"""A memory snapshot as columns: what every analysis and page starts from. Sizes in bytes, times in microseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

import numpy as np

#: All that torch's allocators write, in the order of their codes.
ACTIONS = (
    *('alloc', 'free_requested', 'free_completed', 'segment_alloc', 'segment_free', 'segment_map', 'segment_unmap'),
    *('snapshot', 'oom'),
)
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, SNAPSHOT, OOM = range(9)

#: What a tensor seen by the recorder can be, in the order of its codes.
TENSOR_CATEGORIES = ('parameter', 'buffer', 'gradient', 'optimizer_state', 'input')


@dataclass(frozen=True)
class Frame:
    filename: str
    line: int
    name: str

    def __str__(self) -> str:
        return f'{self.filename}:{self.line} {self.name}'


Stack = tuple[Frame, ...]


@dataclass(frozen=True)
class Blocks:
    """What is active at the end of the recording, a row each.

    Args:
        address (ndarray): uint64.
        size (ndarray): int64, rounded up as the allocator does.
        requested (ndarray): int64, as asked for; the same as ``size`` where the format does not tell.
        stack (ndarray): int32, an index into the snapshot's ``stacks``.
        awaiting (ndarray): bool, already freed by its owner but still used by another stream.
    """

    address: np.ndarray
    size: np.ndarray
    requested: np.ndarray
    stack: np.ndarray
    awaiting: np.ndarray

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True)
class Segments:
    """What the allocator holds of the device at the end of the recording, a row each.

    Args:
        address (ndarray): uint64.
        total_size (ndarray): int64.
        allocated (ndarray): int64, of it in blocks that are allocated.
        active (ndarray): int64, and in blocks that another stream still uses.
        stream (ndarray): int64.
        pool (ndarray): int32, an index into ``pools``.
        expandable (ndarray): bool.
        pools (list[str]): such as ``'large'``, or ``'large of pool (1, 0)'`` of a private one.
    """

    address: np.ndarray
    total_size: np.ndarray
    allocated: np.ndarray
    active: np.ndarray
    stream: np.ndarray
    pool: np.ndarray
    expandable: np.ndarray
    pools: list[str]

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True)
class DeviceHistory:
    """One device's events as columns, oldest first, and what is left at the end.

    Args:
        device (int): its index.
        action (ndarray): int8, an index into ``ACTIONS``.
        address (ndarray): uint64; of an ``oom``, the bytes that the device had free.
        size (ndarray): int64, bytes as asked for.
        time_us (ndarray): int64; -1 where the format has no times.
        stack (ndarray): int32, an index into the snapshot's ``stacks``.
        module (ndarray): int32, an index into the snapshot's ``modules``.
        blocks (Blocks): active at the end.
        segments (Segments): reserved at the end.
        reserved (int): bytes of all segments at the end.
    """

    device: int
    action: np.ndarray
    address: np.ndarray
    size: np.ndarray
    time_us: np.ndarray
    stack: np.ndarray
    module: np.ndarray
    blocks: Blocks
    segments: Segments
    reserved: int

    @property
    def has_times(self) -> bool:
        return len(self.time_us) > 0 and int(self.time_us[0]) >= 0


@dataclass(frozen=True)
class Phases:
    """What the training did, each row from its time on: int64 ``time_us``, ``batch``, and ``name`` into ``names``."""

    time_us: np.ndarray
    batch: np.ndarray
    name: np.ndarray
    names: list[str]

    def __len__(self) -> int:
        return len(self.time_us)


@dataclass(frozen=True)
class Tensors:
    """Tensors that were seen alive: int64 ``time_us``, uint64 ``address``, int64 ``size``, int8 ``category`` into
    ``TENSOR_CATEGORIES``, int32 ``name`` into ``names``.
    """

    time_us: np.ndarray
    address: np.ndarray
    size: np.ndarray
    category: np.ndarray
    name: np.ndarray
    names: list[str]

    def __len__(self) -> int:
        return len(self.time_us)


@dataclass(frozen=True)
class OutOfMemory:
    """What was asked for, and what there was, when the memory ran out. None where it is not known."""

    device: Optional[int] = None
    requested: Optional[int] = None
    allocated: Optional[int] = None
    reserved: Optional[int] = None
    free: Optional[int] = None
    total: Optional[int] = None
    message: Optional[str] = None


@dataclass(frozen=True)
class Meta:
    """Where a snapshot is from: ``device`` is ``'cpu'`` or ``'cuda'``; empty where another program wrote it."""

    device: str = ''
    torch: str = ''
    recorder: str = ''
    rank: Optional[int] = None


@dataclass(frozen=True)
class Snapshot:
    """A snapshot's devices, and what their columns name by index.

    Args:
        devices (list[DeviceHistory]): those that have events or blocks.
        stacks (list[Stack]): innermost frame first; 0 is the empty one.
        modules (list[str]): 0 is ``''``, unknown.
        phases (Phases): empty where the recorder did not tell.
        tensors (Tensors): likewise.
        oom (OutOfMemory, optional): the exception that the snapshot was taken for, if it was that.
        error (str): any exception that it was taken for, or ``''``.
        meta (Meta): where it is from.
    """

    devices: list[DeviceHistory]
    stacks: list[Stack]
    modules: list[str]
    phases: Phases
    tensors: Tensors
    oom: Optional[OutOfMemory] = None
    error: str = ''
    meta: Meta = field(default_factory=Meta)
