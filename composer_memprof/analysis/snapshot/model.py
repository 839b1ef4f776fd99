"""A memory snapshot as NumPy columns, the input of every analysis. Sizes are in bytes, times in microseconds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Optional

import numpy as np

from composer_memprof.recorders.allocations.notes import OutOfMemory

__all__ = [
    'ACTIONS',
    'ALLOC',
    'FREE_COMPLETED',
    'FREE_REQUESTED',
    'OOM',
    'SEGMENT_ALLOC',
    'SEGMENT_FREE',
    'SEGMENT_MAP',
    'SEGMENT_UNMAP',
    'SNAPSHOT',
    'Annotations',
    'Blocks',
    'DeviceHistory',
    'Frame',
    'Meta',
    'OutOfMemory',
    'Phases',
    'Segments',
    'Snapshot',
    'Stack',
    'Tensors',
]

#: Every action that torch's allocators write, in the order of their codes.
ACTIONS = (
    *('alloc', 'free_requested', 'free_completed', 'segment_alloc', 'segment_free', 'segment_map', 'segment_unmap'),
    *('snapshot', 'oom'),
)
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, SNAPSHOT, OOM = range(9)


@dataclass(frozen=True)
class Frame:
    """A frame of a call stack. ``line`` is 0 if it has none, as in compiled code."""

    filename: str
    line: int
    name: str

    def __str__(self) -> str:
        return f'{self.filename}:{self.line} {self.name}' if self.line else f'{self.filename} {self.name}'

    def short(self) -> str:
        """With the last part of the path only.

        >>> Frame('/home/me/train.py', 7, 'step').short()
        'train.py:7 step'
        """
        return str(replace(self, filename=PurePath(self.filename).name))


Stack = tuple[Frame, ...]


@dataclass(frozen=True)
class Blocks:
    """The blocks that are active at the end of the recording, one row each.

    Args:
        address (ndarray): uint64.
        size (ndarray): int64, as the allocator rounded it up.
        requested (ndarray): int64, as requested; the same as ``size`` if the format lacks it.
        stack (ndarray): int32, index into the snapshot's ``stacks``.
        awaiting (ndarray): bool, True if the owner freed it and another stream still uses it.
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
    """The segments that the allocator has reserved at the end of the recording, one row each.

    Args:
        address (ndarray): uint64.
        total_size (ndarray): int64.
        allocated (ndarray): int64, bytes in allocated blocks.
        active (ndarray): int64, bytes in active blocks: allocated ones, and freed ones that a stream still uses.
        stream (ndarray): int64.
        pool (ndarray): int32, index into ``pools``.
        expandable (ndarray): bool.
        pools (list[str]): such as ``'large'``, or ``'large of pool (1, 0)'`` for a private pool.
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
    """One device's events as columns, oldest first, with its blocks and segments at the end.

    Args:
        device (int): its index.
        action (ndarray): int8, index into ``ACTIONS``.
        address (ndarray): uint64; for an ``oom`` event, the device's free bytes.
        size (ndarray): int64, bytes as requested.
        time_us (ndarray): int64; -1 if the format has no times.
        stack (ndarray): int32, index into the snapshot's ``stacks``.
        module (ndarray): int32, index into the snapshot's ``modules``.
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
    """The phases of training in order of time, one row for each start.

    Args:
        time_us (ndarray): int64, when it starts.
        batch (ndarray): int64.
        name (ndarray): int64, index into ``names``.
        names (list[str]): of phases.
    """

    time_us: np.ndarray
    batch: np.ndarray
    name: np.ndarray
    names: list[str]

    def __len__(self) -> int:
        return len(self.time_us)


@dataclass(frozen=True)
class Annotations:
    """Ranges of the program that torch noted, in order of their start, one row each.

    Args:
        begin_us (ndarray): int64, when it began; 0 if that was before the recording.
        end_us (ndarray): int64, when it ended; the largest int64 if it had not.
        name (ndarray): int64, index into ``names``.
        names (list[str]): such as ``'Optimizer.step#AdamW.step'``, or those of the user's own ``record_function``.
    """

    begin_us: np.ndarray
    end_us: np.ndarray
    name: np.ndarray
    names: list[str]

    def __len__(self) -> int:
        return len(self.begin_us)


@dataclass(frozen=True)
class Tensors:
    """Tensors whose addresses the recorder noted, one row for each time that it saw one.

    Args:
        time_us (ndarray): int64, when it was seen.
        address (ndarray): uint64.
        size (ndarray): int64.
        category (ndarray): int8, index into ``vocabulary.TENSOR_CATEGORIES``.
        name (ndarray): int32, index into ``names``.
        names (list[str]): dotted names.
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
class Meta:
    """The origin of a snapshot. All are empty if another program wrote it.

    Args:
        device (str): ``'cpu'`` or ``'cuda'``.
        torch (str): its version.
        recorder (str): ``'allocator_history'`` or ``'profiler'``.
        rank (int, optional): global rank.
        simulated (str): the simulated GPU that it was recorded on, such as ``'h100-80gb'``; ``''`` for a real device.
    """

    device: str = ''
    torch: str = ''
    recorder: str = ''
    rank: Optional[int] = None
    simulated: str = ''


@dataclass(frozen=True)
class Snapshot:
    """A snapshot's devices, and the stacks, modules, phases and tensors that their columns refer to.

    Args:
        devices (list[DeviceHistory]): those that have events or blocks.
        stacks (list[Stack]): innermost frame first; 0 is the empty stack.
        modules (list[str]): dotted names; 0 is ``''``, unknown.
        phases (Phases): empty if the recorder noted none.
        tensors (Tensors): empty if the recorder noted none.
        oom (OutOfMemory, optional): the failed allocation that the snapshot was taken for, if any.
        error (str): the error that it was taken for, or ``''``.
        meta (Meta): its origin.
        notes_version (int): of the format of our notes in the file.
        ignored (dict[str, int]): the number of events of each action that is not known here, which were left out.
        rss_peak (int, optional): the most resident memory of the process that the recorder noted.
        known_before (int, optional): bytes of blocks from before the recording that the recorder knew of.
        max_entries (int, optional): the most events of a device that the recorder kept.
        memory (list[int]): bytes of memory that each device has, by its index; empty if it is not known.
        settings (dict[str, str]): the allocator's settings, as torch noted them; empty without a caching allocator.
        annotations (Annotations, optional): None if the snapshot has none.
        keepers (dict[int, str]): what keeps some blocks that batches have left, in words, by address.
        sources (dict[str, str]): the text of lines that allocate, by ``file:line``.
        precision (str): in which the training computes, such as ``'amp_bf16'``; ``''`` if that is not known.
        evaluation_graph (str, optional): the first module of an evaluation that recorded a graph for backward; None if none did.
        whole (dict[str, int]): bytes of parameters that FSDP left whole, by module, largest first.
        beside (dict[str, int]): bytes of tensors from before that are no part of the model, by what keeps them, largest first.
        copies (dict[str, int]): bytes of the model's parts that are copies of the rest and are not trained, by module.
        unused_gradients (dict[str, int]): bytes of gradients that no optimizer uses, by module.
        without_gradient (dict[str, int]): bytes of the modules whose activations are kept for a backward pass that never
            reaches them, by module.
    """

    devices: list[DeviceHistory]
    stacks: list[Stack]
    modules: list[str]
    phases: Phases
    tensors: Tensors
    oom: Optional[OutOfMemory] = None
    error: str = ''
    meta: Meta = field(default_factory=Meta)
    notes_version: int = 1
    ignored: dict[str, int] = field(default_factory=dict)
    rss_peak: Optional[int] = None
    known_before: Optional[int] = None
    max_entries: Optional[int] = None
    memory: list[int] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    annotations: Optional[Annotations] = None
    keepers: dict[int, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    precision: str = ''
    evaluation_graph: Optional[str] = None
    whole: dict[str, int] = field(default_factory=dict)
    beside: dict[str, int] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    unused_gradients: dict[str, int] = field(default_factory=dict)
    without_gradient: dict[str, int] = field(default_factory=dict)
