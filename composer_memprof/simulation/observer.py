"""Within the simulated process: records a script's memory over its steps.

The script need not know of this package. What it does is seen from torch: the start of CUDA and ``Optimizer.step``.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Optional

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from composer_memprof.recorders.allocations import allocator_history
from composer_memprof.recorders.allocations.allocator_history import AllocatorHistory
from composer_memprof.recorders.allocations.annotations import Annotations
from composer_memprof.recorders.allocations.notes import with_notes
from composer_memprof.recorders.torch_private import cuda_allocator
from composer_memprof.recorders.torch_private.compilation import has_compiled_call
from composer_memprof.simulation.peaks import DevicePeak
from composer_memprof.simulation.step_clock import StepClock, new_clock
from composer_memprof.simulation.step_time import StepTime
from composer_memprof.simulation.trace.recorder import StepTrace
from composer_memprof.vocabulary import BACKWARD, EVAL_FORWARD, FORWARD, OPTIMIZER, START

#: Events of each device that are kept.
_MAX_ENTRIES = 2_000_000


class StepObserver:
    """Records the allocator's history, annotated with steps, phases, modules and tensors.

    It follows the optimizer that steps first.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.backwards = 0
        self._history = AllocatorHistory(_MAX_ENTRIES)
        self._annotations = Annotations()
        self._optimizer: Optional[torch.optim.Optimizer] = None
        self._model: Optional[torch.nn.Module] = None
        self._has_phases = False
        self._clock: Optional[StepClock] = None
        #: Of the step that was timed; None if none was, or it could not be followed.
        self.time: Optional[StepTime] = None
        #: Of the same step, if it was recorded.
        self.trace: Optional[StepTrace] = None
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

    def begin_step(self) -> None:
        """The step that is timed begins."""
        self._clock = self._new_clock()
        if self._clock is not None:
            self._clock.start()

    def _new_clock(self) -> Optional[StepClock]:
        """Of the step that begins."""
        return new_clock()

    @property
    def is_timing(self) -> bool:
        """Whether a step is being timed."""
        return self._clock is not None

    def end_step(self) -> None:
        """It ends."""
        clock, self._clock = self._clock, None
        if clock is not None:
            self.time = clock.stop()
            self.trace = clock.trace

    def _optimizer_begins(self) -> None:
        self._annotations.mark(OPTIMIZER, self.steps)
        if self._clock is not None:
            self._clock.optimizes = True

    def _step_aside(self) -> bool:
        """Leave the history to the script, whose own snapshots then begin where its own recording does."""
        if self.is_alone:
            self.is_alone = False
            self._history.cancel()
        return True

    def follow_steps(self) -> None:
        """See each step of each optimizer, from now to the end of the process."""
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        call_when_backward_begins(self._backward_begins)

    def _backward_begins(self) -> None:
        self.backwards += 1
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
        evaluates = not model.training and not torch.is_grad_enabled()
        self._annotations.mark(EVAL_FORWARD if evaluates else FORWARD, self.steps)
        self._annotations.see_inputs((arguments, keywords))
        if self._clock is not None and model.training:
            self._clock.see_batch((arguments, keywords))

    def _before_step(self, optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> Any:
        if self._optimizer is None:
            self._optimizer = optimizer
        if optimizer is not self._optimizer:
            return None
        self._about_to_step()
        closure = arguments[1] if len(arguments) > 1 else keywords.get('closure')
        if not callable(closure):
            self._optimizer_begins()
            return None

        def closure_then_optimizer(*given: Any, **named: Any) -> Any:
            """Forward and backward run in the closure, as in Composer's Trainer; the optimizer's own work after it."""
            result = closure(*given, **named)
            self._optimizer_begins()
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
        if self._clock is not None:
            self._clock.optimizes = False

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


def device_peaks() -> list[DevicePeak]:
    """The peaks of each device that this process used."""
    found = []
    for device in range(torch.cuda.device_count()):
        peak = DevicePeak(device, torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device))
        if peak.reserved:
            found.append(peak)
    return found


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
    wanted = parameters_of(optimizer)
    # isinstance would read attributes of objects that warn about it
    models = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    having = [each for each in models if wanted <= ids_of(each.parameters())]
    inner = {id(module) for each in having for module in each.modules() if module is not each}
    return next((each for each in having if id(each) not in inner), None)


def parameters_of(optimizer: torch.optim.Optimizer) -> set[int]:
    return ids_of(parameter for group in optimizer.param_groups for parameter in group['params'])


def ids_of(objects: Iterable[Any]) -> set[int]:
    return {id(each) for each in objects}
