"""MemorySnapshot's recording of allocations in a Trainer, annotated with batches, phases, modules and tensors."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Optional

import torch
from composer.core import State
from composer.utils import dist

from composer_memprof.messages import errors_logged
from composer_memprof.recorders import kineto
from composer_memprof.recorders.allocations import allocator_history, cpu_allocations, keepers, out_of_memory
from composer_memprof.recorders.allocations import annotations as snapshot_annotations
from composer_memprof.recorders.allocations.allocator_history import AllocatorHistory
from composer_memprof.recorders.allocations.annotations import Annotations
from composer_memprof.recorders.allocations.beside_model import blocks_beside_model, kept_beside_model
from composer_memprof.recorders.allocations.left_blocks import left_by_batches
from composer_memprof.recorders.allocations.model_parts import copies_in, unused_gradients, without_gradient
from composer_memprof.recorders.allocations.notes import Failure, SnapshotNotes, with_notes
from composer_memprof.recorders.allocations.source_lines import source_lines
from composer_memprof.recorders.allocations.standing_blocks import StandingBlocks
from composer_memprof.recorders.host.processes import ProcessReader
from composer_memprof.recorders.kineto import KinetoRecorder
from composer_memprof.recorders.modules.code import code_of_modules
from composer_memprof.recorders.modules.names import named_modules
from composer_memprof.recorders.modules.running import is_in_forward
from composer_memprof.recorders.modules.whole_parameters import whole_modules
from composer_memprof.recorders.tensors import tensors_in
from composer_memprof.vocabulary import FORWARDS

#: The modules of ``torch_private`` that a recording needs.
GPU_NEEDS = (*allocator_history.NEEDS, *out_of_memory.NEEDS, *snapshot_annotations.NEEDS, *keepers.NEEDS)
CPU_NEEDS = (*kineto.NEEDS, *kineto.EVENT_TREE_NEEDS, *cpu_allocations.NEEDS, *keepers.NEEDS)
#: Makes the snapshot; may be called in a forked child.
Make = Callable[[], dict[str, Any]]


class SnapshotRecording:
    """Records with torch's profiler on a CPU, with the allocator's history on a GPU.

    Args:
        source (KinetoRecorder | AllocatorHistory): the recorder.
        follows_modules (bool): on a GPU, note which module runs, by hooks on the model. On a CPU the profiler does.
        max_entries (int): events that the snapshot keeps.
    """

    def __init__(self, source: KinetoRecorder | AllocatorHistory, follows_modules: bool, max_entries: int) -> None:
        self.source = source
        self.active = False
        self._has_trained = False
        self._follows_modules = follows_modules
        self._max_entries = max_entries
        self._annotations = Annotations()
        self._standing: Optional[StandingBlocks] = None
        self._process: Optional[ProcessReader] = None

    def begin(self, state: State, phase: str, batch: int) -> None:
        """Start to record, in ``phase`` of ``batch``."""
        self.active = True
        self._annotations = Annotations()
        self._annotations.mark(phase, batch)
        self._annotations.see_model(state.model, state.optimizers)
        self._annotations.see_inputs(state.batch)
        if isinstance(self.source, KinetoRecorder):
            self._standing = StandingBlocks(
                _tensors_held(state), resized=functools.partial(snapshot_annotations.gathered_in, state.model)
            )
            with contextlib.suppress(OSError):  # no file can be opened any more: what is resident is not recorded then
                self._process = ProcessReader()
            self._note_rss()
            self.source.start(self)
            return
        if self._follows_modules:
            self._annotations.follow_modules(state.model)
        self.source.start()

    def mark(self, phase: str, state: State, batch: int) -> None:
        """``phase`` of ``batch`` starts now."""
        self._has_trained = self._has_trained or (phase in FORWARDS and state.model.training)
        if self.active:
            self._annotations.mark(phase, batch)
            if phase in FORWARDS:
                self._annotations.see_inputs(state.batch)
            self._look()

    def end(self, state: State, failure: Optional[Failure] = None) -> Make:
        """End the recording. On a GPU, make or fork the snapshot before :meth:`release`."""
        self._look()
        standing = self._standing
        self._leave()
        if isinstance(self.source, KinetoRecorder):
            modules = {id(module): name for name, module in named_modules(state.model, with_wrappers=True)}
            make: Make = functools.partial(
                cpu_allocations.snapshot_of,
                self.source.stop(self),
                modules,
                standing=standing,
                max_entries=self._max_entries,
            )
            notes = replace(
                cpu_allocations.NOTES,
                rss=self._annotations.rss,
                known_before=standing.bytes if standing is not None else None,
            )
            return self._annotated(make, notes, state, failure)
        return self._annotated(self.source.take, allocator_history.notes_of_devices(), state, failure)

    def release(self) -> None:
        """After :meth:`end`: free what the snapshot was made from."""
        if isinstance(self.source, AllocatorHistory):
            self.source.cancel()

    def take(self, state: State, failure: Optional[Failure] = None) -> Make:
        """A snapshot of a GPU's history so far; the recording continues."""
        assert isinstance(self.source, AllocatorHistory), 'the profiler must be stopped first'
        if failure is not None:
            evaluates = self._has_trained and (not state.model.training or is_in_forward(state.model))
            self._annotations.see_failed_allocation(evaluates=evaluates)
        return self._annotated(self.source.take, allocator_history.notes_of_devices(), state, failure)

    def cancel(self) -> None:
        """Cancel a warm-up or a recording."""
        self._leave()
        self.source.cancel()

    def _leave(self) -> None:
        self.active = False
        self._annotations.leave_modules()
        standing, self._standing = self._standing, None
        if standing is not None:
            standing.leave()
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _look(self) -> None:
        """On a CPU: note what the profiler does not report."""
        self._note_rss()
        if self._standing is not None:
            self._standing.look()

    def _note_rss(self) -> None:
        if self._process is not None:
            self._annotations.note_rss(self._process.rss())

    def _annotated(self, make: Make, notes: SnapshotNotes, state: State, failure: Optional[Failure]) -> Make:
        annotations = self._annotations
        annotations.see_model(state.model, state.optimizers)
        notes = replace(
            notes,
            rank=dist.get_global_rank(),
            phases=annotations.phases,
            tensors=annotations.tensors,
            modules=annotations.modules,
            max_entries=self._max_entries,
            precision=_precision(state),
            evaluation_graph=annotations.evaluation_graph,
            code=None if annotations.modules else code_of_modules(state.model),
            whole=list(whole_modules(state.model).items()) or None,
        )
        if failure is not None:
            with errors_logged('the parts of the model that are not trained were not found'):
                copies = list(copies_in(state.model, state.optimizers).items()) or None
                untrained = list(without_gradient(state.model, state.optimizers).items()) or None
                unused = list(unused_gradients(state.model, state.optimizers).items()) or None
                notes = replace(notes, copies=copies, without_gradient=untrained, unused_gradients=unused)
        return functools.partial(_make_with_notes, make, notes.with_failure(failure), os.getpid())


def _tensors_held(state: State) -> Iterator[torch.Tensor]:
    """The tensors that the model, the optimizers and Composer hold between batches."""
    for _, _, tensor in snapshot_annotations.tensors_of(state.model, state.optimizers):
        yield tensor
    yield from tensors_in((state.batch, state.outputs, state.loss))


def _precision(state: State) -> str:
    """In which the training computes; ``''`` if that is not known: a loop of one's own, or a model in another precision."""
    halves = sum(each.numel() for each in state.model.parameters() if each.dtype != torch.float32)
    whole = sum(each.numel() for each in state.model.parameters())
    return '' if state.dataloader is None or 2 * halves > whole else str(state.precision.value)


def _make_with_notes(make: Make, notes: SnapshotNotes, training: int) -> dict[str, Any]:
    """Make the snapshot; in a forked child, find what only a look at it and at all objects shows.

    In the training's own process such a look would take long, and hold objects that other threads of torch free.
    """
    snapshot = make()
    if os.getpid() == training:
        return with_notes(snapshot, notes)
    with errors_logged('what keeps the largest blocks was not found'):
        known = {address for _, address, *_ in notes.tensors or ()}
        kept = keepers.keepers_of(left_by_batches(snapshot, notes.phases or (), known), known)
        beside = kept_beside_model(blocks_beside_model(snapshot, known), known)
        notes = replace(notes, keepers=sorted(kept.items()), sources=source_lines(snapshot), beside=beside)
    return with_notes(snapshot, notes)
