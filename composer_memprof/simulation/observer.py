"""Within the simulated process: records a script's memory over its steps, and ends it after some of them.

The script need not know of this package. What it does is seen from torch: the start of CUDA and ``Optimizer.step``.
"""

from __future__ import annotations

import atexit
import functools
import gc
import os
import resource
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from composer_memprof.messages import errors_logged
from composer_memprof.recorders.allocations import allocator_history
from composer_memprof.recorders.allocations.allocator_history import AllocatorHistory
from composer_memprof.recorders.allocations.annotations import Annotations
from composer_memprof.recorders.allocations.notes import with_notes
from composer_memprof.recorders.allocations.out_of_memory import add_observer, out_of_memory_in
from composer_memprof.recorders.torch_private import cuda_allocator
from composer_memprof.recorders.torch_private.compilation import has_compiled_call
from composer_memprof.simulation.peaks import (
    FOLDER_VARIABLE,
    PEAKS_VARIABLE,
    STEPS_VARIABLE,
    DevicePeak,
    Moment,
    ProcessPeaks,
    note_begin,
)
from composer_memprof.simulation.workers import WorkerMemory
from composer_memprof.vocabulary import BACKWARD, FORWARD, OPTIMIZER, START

#: Events of each device that are kept.
_MAX_ENTRIES = 2_000_000


class StepObserver:
    """Records the allocator's history, annotated with steps, phases, modules and tensors.

    It follows the optimizer that steps first.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._history = AllocatorHistory(_MAX_ENTRIES)
        self._annotations = Annotations()
        self._optimizer: Optional[torch.optim.Optimizer] = None
        self._model: Optional[torch.nn.Module] = None
        self._has_phases = False
        #: Whether nobody else records: there is only one history.
        self.is_alone = True

    def begin(self) -> None:
        """Called when CUDA starts."""
        self._annotations.mark(START, 0)
        self._history.start()
        cuda_allocator.call_when_history_is_set(self._step_aside)

    def restart(self) -> None:
        """Forget the events so far; what is allocated now stays known."""
        self._history.cancel()
        self._history.start()

    def _step_aside(self) -> None:
        self.is_alone = False

    def follow_steps(self) -> None:
        """See each step of each optimizer, from now to the end of the process."""
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        call_when_backward_begins(self._backward_begins)

    def _backward_begins(self) -> None:
        if self._has_phases:
            self._annotations.mark(BACKWARD, self.steps)

    def follow_model(self, model: torch.nn.Module) -> None:
        """Note its modules as they run, and where its tensors are after each step."""
        self._model = model
        self._annotations.see_model(model)
        if has_compiled_call(model):  # torch would compile the hooks
            return
        self._has_phases = True
        self._annotations.follow_modules(model)
        model.register_forward_pre_hook(self._forward_begins, with_kwargs=True)

    def _forward_begins(self, model: torch.nn.Module, arguments: Any, keywords: Any) -> None:
        self._annotations.mark(FORWARD, self.steps)
        self._annotations.see_inputs((arguments, keywords))

    def _before_step(self, optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> Any:
        if self._optimizer is None:
            self._optimizer = optimizer
        if optimizer is not self._optimizer:
            return None
        self._about_to_step()
        closure = arguments[1] if len(arguments) > 1 else keywords.get('closure')
        if not callable(closure):
            self._annotations.mark(OPTIMIZER, self.steps)
            return None

        def closure_then_optimizer(*given: Any, **named: Any) -> Any:
            """Forward and backward run in the closure, as in Composer's Trainer; the optimizer's own work after it."""
            result = closure(*given, **named)
            self._annotations.mark(OPTIMIZER, self.steps)
            return result

        if len(arguments) > 1:
            return (arguments[0], closure_then_optimizer, *arguments[2:]), keywords
        return arguments, {**keywords, 'closure': closure_then_optimizer}

    def _about_to_step(self) -> None:
        """For subclasses: the optimizer that is followed steps next."""

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if optimizer is not self._optimizer:
            return
        self.steps += 1
        model = self._model or _model_of(optimizer)
        if self._model is None and model is not None:
            self.follow_model(model)
        if model is not None:
            self._annotations.see_model(model, [optimizer])
        self._annotations.mark(FORWARD, self.steps)

    def snapshot(self, rank: int) -> dict[str, Any]:
        """A memory snapshot of all that was recorded."""
        notes = replace(
            allocator_history.notes_of_devices(),
            rank=rank,
            phases=self._annotations.phases if self._has_phases else None,
            tensors=self._annotations.tensors,
            modules=self._annotations.modules,
            max_entries=_MAX_ENTRIES,
        )
        return with_notes(self._history.take(), notes)


class ProcessObserver(StepObserver):
    """Writes what a process used at its end, which it may bring about.

    Args:
        folder: for the snapshot; without one nothing is recorded.
        peaks: the folder for the peaks.
        steps: of the first optimizer; before the next one the process ends. 0 for all of them.
    """

    def __init__(self, folder: Optional[Path], peaks: Path, steps: int) -> None:
        super().__init__()
        self._folder = folder
        self._peaks = peaks
        self._shortages = 0
        self._ran_out: Optional[Moment] = None
        self._workers = WorkerMemory()
        self._most_steps = steps
        self._process = os.getpid()

    def follow_steps(self) -> None:
        super().follow_steps()
        call_when_optimizer_is_made(self._wait_for_model)

    def _wait_for_model(self, optimizer: torch.optim.Optimizer) -> None:
        """Follow the model from its first forward on: memory often runs out before the first step."""
        if self._model is not None:
            return

        def first_forward(module: torch.nn.Module, inputs: Any) -> None:
            if torch.compiler.is_compiling():
                return
            hook.remove()
            if self._model is None and _parameters_of(optimizer) <= _ids(module.parameters()):
                self.follow_model(module)
                self._forward_begins(module, inputs, {})

        hook = register_module_forward_pre_hook(first_forward)

    def begin(self) -> None:
        if self._folder is not None:
            super().begin()
        note_begin(self._peaks)
        add_observer(self._memory_runs_out)
        atexit.register(self._end)

    def _memory_runs_out(self, device: int, requested: int, total: int, free: int) -> None:
        self._shortages += 1
        if self._has_phases:
            _, batch, phase = self._annotations.phases[-1]
            modules = self._annotations.modules
            self._ran_out = Moment(batch, phase, modules[-1][1] if modules else '')

    def _about_to_step(self) -> None:
        self._workers.read()
        if self._most_steps and self.steps >= self._most_steps:
            sys.exit(0)

    def _end(self) -> None:
        if os.getpid() != self._process:
            return
        with errors_logged('the peaks of a simulated process could not be written'):
            self._workers.read()
            error = out_of_memory_in(getattr(sys, 'last_value', None))
            ProcessPeaks(
                devices=device_peaks(),
                steps=self.steps,
                host=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                workers=self._workers.bytes,
                worker_count=self._workers.count,
                shortages=self._shortages,
                ran_out=self._ran_out,
                out_of_memory='' if error is None else ' '.join(str(error).split()),
                snapshot=self._save(self._folder) if self._folder is not None and self.is_alone else None,
            ).write(self._peaks)

    def _save(self, folder: Path) -> Optional[str]:
        rank = int(os.environ.get('RANK', '0'))
        snapshot = self.snapshot(rank)
        if not any(snapshot['device_traces']):
            return None
        # Not needed by a process that uses no GPU.
        from composer_memprof.simulation.snapshot_files import write_snapshot_files

        folder.mkdir(parents=True, exist_ok=True)
        return str(write_snapshot_files(snapshot, folder, rank, self.steps))


def device_peaks() -> list[DevicePeak]:
    """The peaks of each device that this process used."""
    found = []
    for device in range(torch.cuda.device_count()):
        peak = DevicePeak(device, torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device))
        if peak.reserved:
            found.append(peak)
    return found


def call_when_optimizer_is_made(function: Callable[[torch.optim.Optimizer], None]) -> None:
    """Call ``function`` with each optimizer that is made from now on. It can't be undone."""
    make = torch.optim.Optimizer.__init__

    @functools.wraps(make)
    def make_and_tell(optimizer: torch.optim.Optimizer, *arguments: Any, **keywords: Any) -> None:
        make(optimizer, *arguments, **keywords)
        function(optimizer)

    torch.optim.Optimizer.__init__ = make_and_tell  # type: ignore[assignment, method-assign]


def call_when_backward_begins(function: Callable[[], None]) -> None:
    """Call ``function`` before each backward pass from now on. It can't be undone."""
    run = torch.autograd.backward

    @functools.wraps(run)
    def tell_and_run(*arguments: Any, **keywords: Any) -> None:
        function()
        run(*arguments, **keywords)

    torch.autograd.backward = tell_and_run


def _model_of(optimizer: torch.optim.Optimizer) -> Optional[torch.nn.Module]:
    """The outermost module that has all parameters of the optimizer."""
    wanted = _parameters_of(optimizer)
    # isinstance would read attributes of objects that warn about it
    models = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    having = [each for each in models if wanted <= _ids(each.parameters())]
    inner = {id(module) for each in having for module in each.modules() if module is not each}
    return next((each for each in having if id(each) not in inner), None)


def _parameters_of(optimizer: torch.optim.Optimizer) -> set[int]:
    return _ids(parameter for group in optimizer.param_groups for parameter in group['params'])


def _ids(objects: Iterable[Any]) -> set[int]:
    return {id(each) for each in objects}


def observe() -> None:
    """Observe this process. Called once torch is imported."""
    folder, peaks = os.environ.get(FOLDER_VARIABLE), os.environ.get(PEAKS_VARIABLE)
    if peaks is None:
        return
    steps = int(os.environ.get(STEPS_VARIABLE, '0'))
    observer = ProcessObserver(Path(folder) if folder else None, Path(peaks), steps)
    cuda_allocator.call_when_started(observer.begin)
    observer.follow_steps()
