"""A recording of allocations in a Trainer, with what places its events in batches, phases, modules and tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Optional

from composer.core import State
from composer.utils import dist

from composer_memprof.recorders.allocations import cpu_allocations
from composer_memprof.recorders.allocations.allocator_history import AllocatorHistory
from composer_memprof.recorders.allocations.annotations import Annotations
from composer_memprof.recorders.allocations.snapshot_pickle import with_notes
from composer_memprof.recorders.kineto import KinetoRecorder

#: Makes a snapshot of what was recorded, wherever that is to be done.
Make = Callable[[], dict[str, Any]]


class SnapshotRecording:
    """By torch's profiler on a CPU, by the allocator's history on a GPU.

    Args:
        source (KinetoRecorder | AllocatorHistory): what records.
        follows_modules (bool): whether hooks on the model tell, on a GPU, whose forward or backward runs.
    """

    def __init__(self, source: KinetoRecorder | AllocatorHistory, follows_modules: bool) -> None:
        self.source = source
        self.active = False
        self._follows_modules = follows_modules
        self._annotations = Annotations()

    def begin(self, state: State) -> None:
        self.active = True
        self._annotations = Annotations()
        self._annotations.mark('between batches', state.timestamp.batch.value)
        self._annotations.see_model(state.model, state.optimizers)
        if isinstance(self.source, KinetoRecorder):
            self.source.start(self)
            return
        if self._follows_modules:
            self._annotations.follow_modules(state.model)
        self.source.start()

    def mark(self, phase: str, state: State) -> None:
        if self.active:
            self._annotations.mark(phase, state.timestamp.batch.value)
            if phase == 'forward':
                self._annotations.see_inputs(state.batch)

    def end(self, state: State, about: Optional[dict[str, Any]] = None) -> Make:
        """End the recording. ``about``: what else the snapshot is to carry.

        On a GPU the snapshot has to be made, in a forked child or here, before :meth:`let_go`.
        """
        self.active = False
        self._annotations.leave_modules()
        if isinstance(self.source, KinetoRecorder):
            modules = {id(module): name for name, module in state.model.named_modules()}
            make: Make = functools.partial(cpu_allocations.snapshot_of, self.source.stop(self), modules)
        else:
            make = self.source.take
        return self._with_notes(make, state, about)

    def let_go(self) -> None:
        """After :meth:`end`: let go of what the snapshot was made of."""
        if isinstance(self.source, AllocatorHistory):
            self.source.cancel()

    def take(self, state: State, about: Optional[dict[str, Any]] = None) -> Make:
        """A snapshot of a GPU's history as it stands, which goes on."""
        assert isinstance(self.source, AllocatorHistory), 'a profiler has to be stopped first'
        return self._with_notes(self.source.take, state, about)

    def cancel(self) -> None:
        """End a warm-up, or a recording, without a result."""
        self.active = False
        self._annotations.leave_modules()
        self.source.cancel()

    def _with_notes(self, make: Make, state: State, about: Optional[dict[str, Any]]) -> Make:
        self._annotations.see_model(state.model, state.optimizers)
        notes = {'rank': dist.get_global_rank(), **self._annotations.as_dict(), **(about or {})}
        return functools.partial(with_notes, make, notes)
