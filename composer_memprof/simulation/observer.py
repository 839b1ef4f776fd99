"""Within the simulated process: records a script's memory over its steps, and ends it after some of them.

The script need not know of this package. What it does is seen from torch: the start of CUDA and ``Optimizer.step``.
"""

from __future__ import annotations

import atexit
import gc
import os
import resource
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from composer_memprof.messages import errors_logged
from composer_memprof.recorders.allocations import allocator_history
from composer_memprof.recorders.allocations.allocator_history import AllocatorHistory
from composer_memprof.recorders.allocations.annotations import Annotations
from composer_memprof.recorders.allocations.notes import with_notes
from composer_memprof.recorders.allocations.out_of_memory import out_of_memory_in
from composer_memprof.recorders.torch_private import cuda_allocator
from composer_memprof.simulation.peaks import FOLDER_VARIABLE, STEPS_VARIABLE, DevicePeak, ProcessPeaks
from composer_memprof.vocabulary import BACKWARD, FORWARD, OPTIMIZER

#: Events of each device that are kept.
_MAX_ENTRIES = 2_000_000


class Observer:
    """Records one process, from the start of CUDA to its end.

    Args:
        folder: for the snapshot and the peaks.
        steps: of the first optimizer; before the next one the process ends. 0 for all of them.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder = folder
        self._most_steps = steps
        self._steps = 0
        self._history = AllocatorHistory(_MAX_ENTRIES)
        self._annotations = Annotations()
        self._optimizer: Optional[torch.optim.Optimizer] = None
        self._model: Optional[torch.nn.Module] = None
        self._own_recording = True
        self._process = os.getpid()

    def begin(self) -> None:
        """Called when CUDA starts."""
        self._annotations.mark(FORWARD, 0)
        self._history.start()
        atexit.register(self.end)
        cuda_allocator.call_when_history_is_set(self._step_aside)

    def _step_aside(self) -> None:
        """The script records the allocator's history itself; there is only one."""
        self._own_recording = False

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._optimizer is None:
            self._optimizer = optimizer
        if optimizer is not self._optimizer:
            return
        if self._most_steps and self._steps >= self._most_steps:
            sys.exit(0)
        self._annotations.mark(OPTIMIZER, self._steps)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer is not self._optimizer:
            return
        self._steps += 1
        if self._model is None:
            self._model = _model_of(optimizer)
            if self._model is not None:
                self._follow(self._model)
        if self._model is not None:
            self._annotations.see_model(self._model, [optimizer])
        self._annotations.mark(FORWARD, self._steps)

    def _follow(self, model: torch.nn.Module) -> None:
        self._annotations.follow_modules(model)
        model.register_forward_hook(lambda *_: self._annotations.mark(BACKWARD, self._steps))

    def end(self) -> None:
        """Write what was recorded. Called when the interpreter exits."""
        if os.getpid() != self._process:
            return
        with errors_logged('the peaks of a simulated process could not be written'):
            self._folder.mkdir(parents=True, exist_ok=True)
            snapshot = self._save() if self._own_recording else None
            host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            error = out_of_memory_in(getattr(sys, 'last_value', None))
            message = '' if error is None else ' '.join(str(error).split())
            ProcessPeaks(_device_peaks(), self._steps, host, message, snapshot).write(self._folder)

    def _save(self) -> Optional[str]:
        rank = int(os.environ.get('RANK', '0'))
        notes = replace(
            allocator_history.NOTES,
            rank=rank,
            phases=self._annotations.phases if self._model is not None else None,
            tensors=self._annotations.tensors,
            modules=self._annotations.modules,
            max_entries=_MAX_ENTRIES,
        )
        snapshot = with_notes(self._history.take(), notes)
        if not any(snapshot['device_traces']):
            return None
        # Not needed by a process that uses no GPU.
        from composer_memprof.simulation.snapshot_files import write_snapshot_files

        return str(write_snapshot_files(snapshot, self._folder, rank, self._steps))


def _device_peaks() -> list[DevicePeak]:
    found = []
    for device in range(torch.cuda.device_count()):
        peak = DevicePeak(device, torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device))
        if peak.reserved:
            found.append(peak)
    return found


def _model_of(optimizer: torch.optim.Optimizer) -> Optional[torch.nn.Module]:
    """The outermost module that has all parameters of the optimizer."""
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group['params']}
    # isinstance would read attributes of objects that warn about it
    models = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    having = [each for each in models if wanted <= _ids(each.parameters())]
    inner = {id(module) for each in having for module in each.modules() if module is not each}
    return next((each for each in having if id(each) not in inner), None)


def _ids(objects: Iterable[Any]) -> set[int]:
    return {id(each) for each in objects}


def observe() -> None:
    """Observe this process. Called once torch is imported."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        return
    observer = Observer(Path(folder), int(os.environ.get(STEPS_VARIABLE, '0')))
    cuda_allocator.call_when_started(observer.begin)
    register_optimizer_step_pre_hook(lambda optimizer, *_: observer.before_step(optimizer))
    register_optimizer_step_post_hook(lambda optimizer, *_: observer.after_step(optimizer))
