"""Where the memory of functions is read: this project's recorders, at the start and end of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import psutil
import torch
from torch import nn

from composer_memprof.recorders.allocations.allocator_history import AllocatorHistory
from composer_memprof.recorders.functions.recorder import Call, Source, Values
from composer_memprof.recorders.host.processes import ProcessReader
from composer_memprof.recorders.model_hooks import Hook
from composer_memprof.recorders.modules.recorder import ModuleMemoryRecorder
from composer_memprof.recorders.modules.result import ModuleMemory
from composer_memprof.recorders.saved_tensors.recorder import SavedTensorsRecorder

#: Phases of a batch that the module memory recorder is told of, where they are read or not.
FORWARD, BACKWARD, OPTIMIZER_STEP = 'forward', 'backward', 'optimizer_step'


class HostSource(Source):
    """``rss`` and ``vms`` of this process."""

    _process: ProcessReader

    def open(self) -> None:
        self._process = ProcessReader()

    def close(self) -> None:
        self._process.close()

    def begin(self, call: Call) -> Values:
        usage = self._process.read()
        return {'rss': usage.rss, 'vms': usage.vms}

    end = begin


class CudaSource(Source):
    """``torch.cuda.memory_stats()``: ``active_bytes.all.peak`` and the like. Does not wait for the device."""

    def begin(self, call: Call) -> Values:
        return dict(torch.cuda.memory_stats())

    end = begin


class AllocatorHistorySource(Source):
    """A snapshot of the CUDA allocator, with its history so far, at the start and end of a call.

    Args:
        take (Callable): is given the call, the moment and the history, to take a snapshot of.
    """

    one_thread = has_hooks = True

    def __init__(self, history: AllocatorHistory, take: Callable[[Call, str, AllocatorHistory], None]) -> None:
        self._history = history
        self._take = take

    def open(self) -> None:
        self._history.start()

    def close(self) -> None:
        self._history.cancel()

    def begin(self, call: Call) -> Values:
        self._take(call, 'start', self._history)
        return {}

    def end(self, call: Call) -> Values:
        self._take(call, 'end', self._history)
        return {}


class SavedTensorsSource(Source):
    """What autograd was given to keep since the start of the call.

    ``npp_diff`` by finetuning-scheduler's rule, every save of what is no parameter; ``saved_bytes_diff`` each storage
    once, without inputs. Calls under way together share their hooks.
    """

    one_thread = True

    def __init__(self, model: nn.Module, functions: Any = None) -> None:
        self._model = model
        self._functions = functions
        self._recorder: Optional[SavedTensorsRecorder] = None
        self._users = 0

    def so_far(self) -> tuple[int, int]:
        """By finetuning-scheduler's rule, and exactly, in the calls under way."""
        return self._recorder.so_far() if self._recorder is not None else (0, 0)

    def close(self) -> None:
        recorder, self._recorder, self._users = self._recorder, None, 0
        if recorder is not None:
            recorder.end()
            if recorder.error is not None:
                raise recorder.error

    def begin(self, call: Call) -> Values:
        if self._recorder is None:
            recorder = SavedTensorsRecorder(self._model, self._functions)
            recorder.begin()
            self._recorder = recorder
        self._users += 1
        call.notes['saved'] = self._recorder, *self.so_far()
        return {'npp_diff': 0, 'saved_bytes_diff': 0}

    def end(self, call: Call) -> Values:
        recorder, packed_before, saved_before = call.notes['saved']
        if recorder is not self._recorder:  # it was closed meanwhile
            return {}
        packed, saved = self.so_far()
        self._users -= 1
        if not self._users:  # the calls may overlap without being nested
            self.close()
        return {'npp_diff': packed - packed_before, 'saved_bytes_diff': saved - saved_before}


class ModuleMemorySource(Source):
    """The memory by category and module, of the outermost call under way.

    Args:
        make (Callable): a recorder of the model as it is then.
        take (Callable): is given the call and the result.
    """

    one_thread = True

    def __init__(self, make: Callable[[], ModuleMemoryRecorder], take: Callable[[Call, ModuleMemory], None]) -> None:
        self._make = make
        self._take = take
        self._owner: Optional[Call] = None
        self._recorder: Optional[ModuleMemoryRecorder] = None

    def close(self) -> None:
        recorder, self._recorder, self._owner = self._recorder, None, None
        if recorder is not None:
            recorder.cancel()

    def begin(self, call: Call) -> Values:
        if self._owner is None:
            recorder = self._make()
            recorder.start()
            self._owner, self._recorder = call, recorder
        return {}

    def end(self, call: Call) -> Values:
        if self._owner is call and self._recorder is not None:
            recorder, self._recorder, self._owner = self._recorder, None, None
            self._take(call, recorder.stop())
        return {}

    def phase_begins(self, phase: str, inputs: Any) -> None:
        if self._recorder is None:
            return
        if phase == FORWARD:
            self._recorder.begin_batch(inputs)
        elif phase == OPTIMIZER_STEP:
            self._recorder.begin_optimizer()

    def phase_ends(self, phase: str) -> None:
        if self._recorder is not None and phase == BACKWARD:
            self._recorder.end_backward()


class RootHooksSource(Source):
    """Host memory and packed bytes around the model's own forward passes within a call: ``rss_pre_forward`` and the like.

    Of the last of them, and as ``rss_diff`` added up over all. A call in which none began or ended has none of these.

    Args:
        packed (Callable): the bytes that autograd was given to keep so far.
        attributes (Sequence[str]): which of them are read.
    """

    one_thread = has_hooks = True

    def __init__(self, model: nn.Module, packed: Callable[[], int], attributes: Sequence[str]) -> None:
        self._model = model
        self._packed = packed
        self._attributes = attributes
        self._process: Optional[ProcessReader] = None
        self._handles: list[Any] = []
        self._before: list[tuple[int, int]] = []
        self._after: list[tuple[int, int]] = []
        self._users = 0

    def open(self) -> None:
        self._process = ProcessReader()
        self._handles = [
            self._model.register_forward_pre_hook(Hook(self._note, self._before)),
            self._model.register_forward_hook(Hook(self._note, self._after)),
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._users = 0
        if self._process is not None:
            self._process.close()

    def _note(self, notes: list[tuple[int, int]], *_: Any) -> None:
        if self._users and self._process is not None:
            notes.append((self._process.rss(), self._packed()))

    def begin(self, call: Call) -> Values:
        if not self._users:
            self._before.clear()
            self._after.clear()
        self._users += 1
        call.notes['forwards'] = len(self._before), len(self._after)
        return {}

    def end(self, call: Call) -> Values:
        self._users -= 1
        began, ended = call.notes['forwards']
        before, after = self._before[began:], self._after[ended:]
        values: Values = {}
        if before:
            values['rss_pre_forward'], values['npp_pre_forward'] = before[-1]
        if after:
            values['rss_post_forward'], values['npp_post_forward'] = after[-1]
        if before and len(before) == len(after):
            values['rss_diff'] = sum(one[0] for one in after) - sum(one[0] for one in before)
        return {name: value for name, value in values.items() if name in self._attributes}


def memory_info() -> Any:
    """Of this process, as psutil has it; in finetuning-scheduler each module's ``mem_info_handle``."""
    return psutil.Process().memory_info()


class UserHooksSource(Source):
    """The user's own hooks around the forward of every module; what they set on the model is read there.

    As finetuning-scheduler calls them: ``pre(module, args)``, ``post(module, args, output)``, and ``reset(model,
    attributes)`` once they are in place and after each call that is read. While they are in place, each module has a
    ``mem_info_handle()``. Afterwards it and the attributes are gone.
    """

    one_thread = has_hooks = True

    def __init__(
        self,
        model: nn.Module,
        pre: Sequence[Callable[..., Any]],
        post: Sequence[Callable[..., Any]],
        reset: Sequence[Callable[..., Any]],
        attributes: Sequence[str],
    ) -> None:
        self._model = model
        self._pre, self._post, self._resets = pre, post, reset
        self._attributes = list(attributes)
        self._handles: list[Any] = []
        self._error: Optional[BaseException] = None

    def open(self) -> None:
        module: Any
        for module in self._model.modules():
            module.mem_info_handle = memory_info
            self._handles += [module.register_forward_pre_hook(Hook(self._call, hook)) for hook in self._pre]
            self._handles += [module.register_forward_hook(Hook(self._call, hook)) for hook in self._post]
        self._reset()

    def _call(self, hook: Callable[..., Any], *arguments: Any) -> None:
        """Of the user's hook: what it returns is not for the model, and what it raises not for the training."""
        try:
            hook(*arguments)
        except Exception as error:
            self._error = self._error or error

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for module in self._model.modules():
            for name in ('mem_info_handle', *self._attributes):
                module.__dict__.pop(name, None)

    def _reset(self) -> None:
        for reset in self._resets:
            reset(self._model, self._attributes)

    def begin(self, call: Call) -> Values:
        if self._error is not None:
            raise self._error
        found = {name: getattr(self._model, name, None) for name in self._attributes}
        return {name: value for name, value in found.items() if value is not None}

    def end(self, call: Call) -> Values:
        values = self.begin(call)
        self._reset()
        return values
