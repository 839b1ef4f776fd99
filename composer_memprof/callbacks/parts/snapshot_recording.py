"""MemorySnapshot's recording of allocations in a Trainer, annotated with batches, phases, modules and tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Optional

from composer.core import State
from composer.utils import dist

from composer_memprof.recorders import kineto
from composer_memprof.recorders.allocations import allocator_history, cpu_allocations, out_of_memory
from composer_memprof.recorders.allocations import annotations as snapshot_annotations
from composer_memprof.recorders.allocations.allocator_history import AllocatorHistory
from composer_memprof.recorders.allocations.annotations import Annotations
from composer_memprof.recorders.allocations.notes import Failure, SnapshotNotes, with_notes
from composer_memprof.recorders.kineto import KinetoRecorder
from composer_memprof.recorders.modules.names import named_modules
from composer_memprof.vocabulary import BETWEEN_BATCHES, FORWARD

#: The modules of ``torch_private`` that a recording needs.
GPU_NEEDS = (*allocator_history.NEEDS, *out_of_memory.NEEDS, *snapshot_annotations.NEEDS)
CPU_NEEDS = (*kineto.NEEDS, *kineto.EVENT_TREE_NEEDS, *cpu_allocations.NEEDS)
#: Makes the snapshot; may be called in a forked child.
Make = Callable[[], dict[str, Any]]


class SnapshotRecording:
    """Records with torch's profiler on a CPU, with the allocator's history on a GPU.

    Args:
        source (KinetoRecorder | AllocatorHistory): the recorder.
        follows_modules (bool): on a GPU, note which module runs, by hooks on the model. On a CPU the profiler does.
    """

    def __init__(self, source: KinetoRecorder | AllocatorHistory, follows_modules: bool) -> None:
        self.source = source
        self.active = False
        self._follows_modules = follows_modules
        self._annotations = Annotations()

    def begin(self, state: State) -> None:
        self.active = True
        self._annotations = Annotations()
        self._annotations.mark(BETWEEN_BATCHES, state.timestamp.batch.value)
        self._annotations.see_model(state.model, state.optimizers)
        if isinstance(self.source, KinetoRecorder):
            self.source.start(self)
            return
        if self._follows_modules:
            self._annotations.follow_modules(state.model)
        self.source.start()

    def mark(self, phase: str, state: State) -> None:
        """``phase`` starts now."""
        if self.active:
            self._annotations.mark(phase, state.timestamp.batch.value)
            if phase == FORWARD:
                self._annotations.see_inputs(state.batch)

    def end(self, state: State, failure: Optional[Failure] = None) -> Make:
        """End the recording. On a GPU, make or fork the snapshot before :meth:`release`."""
        self.active = False
        self._annotations.leave_modules()
        if isinstance(self.source, KinetoRecorder):
            modules = {id(module): name for name, module in named_modules(state.model, with_wrappers=True)}
            make: Make = functools.partial(cpu_allocations.snapshot_of, self.source.stop(self), modules)
            return self._annotated(make, cpu_allocations.NOTES, state, failure)
        return self._annotated(self.source.take, allocator_history.NOTES, state, failure)

    def release(self) -> None:
        """After :meth:`end`: free what the snapshot was made from."""
        if isinstance(self.source, AllocatorHistory):
            self.source.cancel()

    def take(self, state: State, failure: Optional[Failure] = None) -> Make:
        """A snapshot of a GPU's history so far; the recording continues."""
        assert isinstance(self.source, AllocatorHistory), 'the profiler must be stopped first'
        return self._annotated(self.source.take, allocator_history.NOTES, state, failure)

    def cancel(self) -> None:
        """Cancel a warm-up or a recording."""
        self.active = False
        self._annotations.leave_modules()
        self.source.cancel()

    def _annotated(self, make: Make, notes: SnapshotNotes, state: State, failure: Optional[Failure]) -> Make:
        annotations = self._annotations
        annotations.see_model(state.model, state.optimizers)
        notes = replace(
            notes,
            rank=dist.get_global_rank(),
            phases=annotations.phases,
            tensors=annotations.tensors,
            modules=annotations.modules,
        )
        return functools.partial(_make_with_notes, make, notes.with_failure(failure))


def _make_with_notes(make: Make, notes: SnapshotNotes) -> dict[str, Any]:
    return with_notes(make(), notes)
