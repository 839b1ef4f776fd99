"""The notes that this package adds to a memory snapshot, beside torch's own keys: one type, one version.

Recorders write them with :func:`with_notes`. ``analysis.snapshot.notes`` reads them from files that are not trusted.
Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Optional

from composer_memprof.simulated_gpu.this_process import simulated_device

#: The snapshot's key for the notes.
KEY = 'composer_memprof'
#: Raised when a key changes its meaning. A snapshot without a version has version 1; 2 has further categories of tensors.
VERSION = 2


@dataclass(frozen=True)
class OutOfMemory:
    """An allocation that failed, sizes in bytes; None where a value is not known.

    Args:
        device (int, optional): index of the device.
        requested (int, optional): size of the allocation.
        allocated (int, optional): allocated on the device by this process.
        reserved (int, optional): reserved by this process's allocator.
        free (int, optional): free on the device.
        total (int, optional): size of the device's memory.
        message (str, optional): of the error.
    """

    device: Optional[int] = None
    requested: Optional[int] = None
    allocated: Optional[int] = None
    reserved: Optional[int] = None
    free: Optional[int] = None
    total: Optional[int] = None
    message: Optional[str] = None


@dataclass(frozen=True)
class Failure:
    """The failure that a snapshot was taken for: the error, and the allocation that failed, if one did."""

    error: Optional[str] = None
    oom: Optional[OutOfMemory] = None


@dataclass(frozen=True)
class SnapshotNotes:
    """The notes in one snapshot. What is None is left out of the file.

    Args:
        device (str): ``cuda`` or ``cpu``.
        torch (str): version of torch.
        recorder (str): ``allocator_history`` or ``profiler``.
        rank (int, optional): global rank.
        phases (Sequence, optional): rows of (time in microseconds since 1970, batch, phase), in order of time.
        tensors (Sequence, optional): rows of (time, address, bytes, category, name).
        modules (Sequence, optional): rows of (time, dotted name of the module that runs from then on).
        rss (Sequence, optional): rows of (time, bytes of resident memory of the process).
        known_before (int, optional): bytes of the blocks that were allocated before the recording and that it knows of.
        max_entries (int, optional): the most events of a device that it keeps.
        memory (Sequence, optional): bytes of memory that each device has, by its index.
        keepers (Sequence, optional): rows of (address, what keeps that block, in words), of blocks that batches left.
        sources (Sequence, optional): rows of (file, line, its text), of lines that allocate.
        code (Sequence, optional): rows of (file, first line, last line, module), of functions of the modules' classes.
        whole (Sequence, optional): rows of (module, bytes), of parameters that FSDP left whole.
        beside (Sequence, optional): rows of (what keeps them, bytes), of tensors from before that are no part of the model.
        copies (Sequence, optional): rows of (module, bytes), of parts that are copies of the rest and are not trained.
        unused_gradients (Sequence, optional): rows of (module, bytes), of gradients that no optimizer uses.
        without_gradient (Sequence, optional): rows of (module, bytes), of modules whose activations are kept for a backward that never reaches them.
        precision (str, optional): in which the training computes, such as ``amp_bf16``.
        evaluation_graph (str, optional): the first module of an evaluation that recorded a graph for backward; None if none did.
        error (str, optional): the error that ended the training.
        oom (OutOfMemory, optional): the allocation that failed.
        version (int): of this format.
        simulated (str, optional): the key of the simulated GPU that it was recorded on, such as ``h100-80gb``.
    """

    device: str
    torch: str
    recorder: str
    rank: Optional[int] = None
    phases: Optional[Sequence[Sequence[Any]]] = None
    tensors: Optional[Sequence[Sequence[Any]]] = None
    modules: Optional[Sequence[Sequence[Any]]] = None
    rss: Optional[Sequence[Sequence[Any]]] = None
    known_before: Optional[int] = None
    max_entries: Optional[int] = None
    memory: Optional[Sequence[int]] = None
    keepers: Optional[Sequence[Sequence[Any]]] = None
    sources: Optional[Sequence[Sequence[Any]]] = None
    code: Optional[Sequence[Sequence[Any]]] = None
    whole: Optional[Sequence[Sequence[Any]]] = None
    beside: Optional[Sequence[Sequence[Any]]] = None
    copies: Optional[Sequence[Sequence[Any]]] = None
    unused_gradients: Optional[Sequence[Sequence[Any]]] = None
    without_gradient: Optional[Sequence[Sequence[Any]]] = None
    precision: Optional[str] = None
    evaluation_graph: Optional[str] = None
    error: Optional[str] = None
    oom: Optional[OutOfMemory] = None
    version: int = VERSION
    simulated: Optional[str] = field(default_factory=simulated_device)

    def with_failure(self, failure: Optional[Failure]) -> SnapshotNotes:
        """These notes with the failure that the snapshot was taken for, if any."""
        return self if failure is None else replace(self, error=failure.error, oom=failure.oom)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as the snapshot holds them."""
        return {**_known(self), **({} if self.oom is None else {'oom': _known(self.oom)})}


def with_notes(snapshot: Mapping[str, Any], notes: SnapshotNotes) -> dict[str, Any]:
    """The snapshot with ``notes`` under :data:`KEY`, in place of any that are there."""
    return {**snapshot, KEY: notes.as_dict()}


def _known(values: SnapshotNotes | OutOfMemory) -> dict[str, Any]:
    found = {field.name: getattr(values, field.name) for field in fields(values)}
    return {name: value for name, value in found.items() if value is not None}
