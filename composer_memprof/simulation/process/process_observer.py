"""Within the simulated process: leaves what a script used, and ends it once enough was seen.

A process leaves its figures at its end, or when its time is up: a script may catch the signal that would end it.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import torch
from torch import distributed
from torch.nn.modules.module import register_module_forward_pre_hook

from composer_memprof.messages import errors_logged
from composer_memprof.recorders.allocations.out_of_memory import add_observer, out_of_memory_in
from composer_memprof.recorders.torch_private import cuda_allocator
from composer_memprof.simulated_gpu.this_process import figures, simulated_device
from composer_memprof.simulated_gpu.values import repeated
from composer_memprof.simulation.observer import StepObserver, device_peaks, ids_of, parameters_of
from composer_memprof.simulation.peaks import TRACE, Asked, Moment, ProcessPeaks, asked_of_this_process, note_begin
from composer_memprof.simulation.process.growth import STEPS_SEEN, MemoryOfSteps
from composer_memprof.simulation.process.long_compiles import tell_of_long_compiles
from composer_memprof.simulation.process.milestones import Milestones
from composer_memprof.simulation.process.workers import WorkerMemory, end_workers
from composer_memprof.simulation.step_clock import StepClock, new_clock
from composer_memprof.simulation.trace.chrome import Where, write_trace
from composer_memprof.simulation.trace.recorder import TraceRecorder


class ProcessObserver(StepObserver):
    """Writes what a process used at its end, which it may bring about.

    Args:
        asked: what to write where, and how much is to be seen.
    """

    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self._asked = asked
        self._shortages = 0
        self._ran_out: Optional[Moment] = None
        self._workers = WorkerMemory()
        self._milestones = Milestones()
        self._ended_early = self._saw_enough = False
        self._memory = MemoryOfSteps()
        self._place = _place()
        self._process = os.getpid()
        self._writing = threading.Lock()
        self._is_written = False
        self._written: Optional[ProcessPeaks] = None

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
            if self._model is None and parameters_of(optimizer) <= ids_of(module.parameters()):
                self.follow_model(module)
                self._forward_begins(module, inputs, {})

        hook = register_module_forward_pre_hook(first_forward)

    def begin(self) -> None:
        if self._asked.folder is not None:
            super().begin()
        note_begin(self._asked.peaks)
        add_observer(self._memory_runs_out)
        atexit.register(self._end)
        if self._asked.deadline:
            threading.Thread(target=self._write_at_deadline, name='memprof-deadline', daemon=True).start()

    def _step_aside(self) -> bool:
        return False if self._asked.keeps_recording else super()._step_aside()

    def _memory_runs_out(self, device: int, requested: int, total: int, free: int) -> None:
        self._shortages += 1
        if self._has_phases:
            _, batch, phase = self._annotations.phases[-1]
            modules = self._annotations.modules
            self._ran_out = Moment(batch, phase, modules[-1][1] if modules else '')

    def _about_to_step(self) -> None:
        self._workers.read()
        enough = self._asked.steps and self.steps >= self._asked.steps
        if not enough or (self._asked.with_evaluation and not self._milestones.are_reached):
            return
        if not self._ended_early:
            self._ended_early = True
            self._write()
            self.begin_step()
        elif self.is_timing:
            self.end_step()
            self._add_time()
        if self.is_timing or self._may_grow():
            return
        self._add_growth()
        self._saw_enough = True
        end_workers()
        sys.exit(0)

    def _may_grow(self) -> bool:
        """Whether memory grew so far, and more steps would tell whether it goes on."""
        return self._memory.growth() > 0 and self.steps < self._asked.steps + STEPS_SEEN

    def _add_growth(self) -> None:
        """To the figures, as the steps after those that were asked for show it."""
        growth = self._memory.growth() if self._ended_early else 0
        if self._written is not None and self._written.growth != growth:
            self._written = dataclasses.replace(self._written, growth=growth)
            self._written.write(self._asked.peaks)

    def _add_rest(self) -> None:
        """To the figures, of a script that grew and came to its own end: nothing grows after that."""
        if self._written is not None and self._written.growth:
            self._written = dataclasses.replace(self._written, growth=0, devices=device_peaks(), steps=self.steps)
            self._written.write(self._asked.peaks)

    def _add_time(self) -> None:
        """To the figures, which were written before the step that was timed."""
        if self._written is not None and self.time is not None:
            self._written = dataclasses.replace(self._written, time=self.time, trace=self._write_trace())
            self._written.write(self._asked.peaks)

    def _new_clock(self) -> Optional[StepClock]:
        return new_clock(TraceRecorder(self._model) if self._asked.traces else None)

    def _write_trace(self) -> Optional[str]:
        if self.trace is None:
            return None
        rank, ranks = self._place_now()
        here = figures()
        path = self._asked.peaks / f'{os.getpid()}{TRACE}'
        write_trace(self.trace, Where(simulated_device() or '', int(here['total_memory']), rank, ranks), path)
        return str(path)

    def _after_step(self, optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
        before = self.steps
        super()._after_step(optimizer, *arguments)
        if self.steps > before:
            self._memory.step_ends()
        if self.steps == 1:
            self._place = _place()
            if self._asked.with_evaluation:
                self._milestones.follow(parameters_of(optimizer))

    def _write_at_deadline(self) -> None:
        time.sleep(max(0.0, self._asked.deadline - time.time()))
        self._write()

    def _end(self) -> None:
        if os.getpid() == self._process:
            self._workers.read()
            self._write()
            if not self._ended_early or self._saw_enough:
                return
            if getattr(sys, 'last_value', None) is None and not repeated.may_have_ended():
                self._add_rest()
                return
            self._add_growth()
            if getattr(sys, 'last_value', None) is not None:  # after all that was asked for
                sys.stdout.flush()
                os._exit(0)

    def _write(self) -> None:
        """Write the figures at once, and once more with the snapshot, which takes longer."""
        with self._writing, errors_logged('the peaks of a simulated process could not be written'):
            if self._is_written:
                return
            self._is_written = True
            self._written = self._peaks()
            self._written.write(self._asked.peaks)
            if self._asked.folder is not None and self.is_alone:
                self._written = dataclasses.replace(self._written, snapshot=self._save(self._asked.folder))
                self._written.write(self._asked.peaks)

    def _peaks(self) -> ProcessPeaks:
        error = out_of_memory_in(getattr(sys, 'last_value', None))
        rank, ranks = self._place_now()
        return ProcessPeaks(
            devices=device_peaks(),
            steps=self.steps,
            host=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            workers=self._workers.bytes,
            worker_count=self._workers.count,
            shortages=self._shortages,
            ran_out=self._ran_out,
            out_of_memory='' if error is None else ' '.join(str(error).split()),
            snapshot=None,
            rank=rank,
            ranks=ranks,
            backwards=self.backwards,
            ended_early=self._ended_early,
            growth=self._memory.growth() if self._ended_early else 0,
            evaluated=self._milestones.evaluated,
            saved=self._milestones.saved,
        )

    def _place_now(self) -> tuple[int, int]:
        """The rank, and how many there are; as they were at the first step if the process group is gone."""
        is_there = distributed.is_available() and distributed.is_initialized()
        return _place() if is_there else self._place

    def _save(self, folder: Path) -> Optional[str]:
        rank, _ = self._place_now()
        snapshot = self.snapshot(rank)
        if not any(snapshot['device_traces']):
            return None
        # Not needed by a process that uses no GPU.
        from composer_memprof.simulation.snapshot_files import write_snapshot_files

        folder.mkdir(parents=True, exist_ok=True)
        return str(write_snapshot_files(snapshot, folder, rank, self.steps))


def _place() -> tuple[int, int]:
    """This process's rank, and how many there are: of its process group, or else as a launcher says."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get('RANK', '0')), int(os.environ.get('WORLD_SIZE', '1'))


def call_when_optimizer_is_made(function: Callable[[torch.optim.Optimizer], None]) -> None:
    """Call ``function`` with each optimizer that is made from now on. It can't be undone."""
    make = torch.optim.Optimizer.__init__

    @functools.wraps(make)
    def make_and_tell(optimizer: torch.optim.Optimizer, *arguments: Any, **keywords: Any) -> None:
        make(optimizer, *arguments, **keywords)
        function(optimizer)

    torch.optim.Optimizer.__init__ = make_and_tell  # type: ignore[assignment, method-assign]


def observe() -> None:
    """Observe this process. Called once torch is imported."""
    asked = asked_of_this_process()
    if asked is None:
        return
    observer = ProcessObserver(asked)
    cuda_allocator.call_when_started(observer.begin)
    observer.follow_steps()
    if asked.keeps_recording:  # the script may write over the recording that it is compared with
        cuda_allocator.call_when_snapshot_is_dumped(lambda file: not os.path.exists(file))
    tell_of_long_compiles()
