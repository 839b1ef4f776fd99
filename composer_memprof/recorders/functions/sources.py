"""Sources of readings: host memory, CUDA statistics, allocator history, saved tensors, module memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import nn

from composer_memprof.recorders.allocations.allocator_history import AllocatorHistory
from composer_memprof.recorders.functions.early_history import EarlyHistory
from composer_memprof.recorders.functions.source import FunctionCall, Source, Values
from composer_memprof.recorders.host.processes import ProcessReader
from composer_memprof.recorders.modules.recorder import ModuleMemoryRecorder
from composer_memprof.recorders.modules.result import ModuleMemory
from composer_memprof.recorders.saved_tensors.recorder import SavedTensorsRecorder
from composer_memprof.vocabulary import BACKWARD, FORWARD

OPTIMIZER_STEP = 'optimizer_step'


class HostSource(Source):
    """``rss`` and ``vms`` of this process, in bytes."""

    _process: ProcessReader

    def open(self) -> None:
        self._process = ProcessReader()

    def close(self) -> None:
        self._process.close()

    def read(self, call: FunctionCall, point: str) -> Values:
        usage = self._process.read()
        return {'rss': usage.rss, 'vms': usage.vms}


class CudaSource(Source):
    """``torch.cuda.memory_stats()``, such as ``active_bytes.all.peak``. Does not synchronize with the device."""

    def read(self, call: FunctionCall, point: str) -> Values:
        return dict(torch.cuda.memory_stats())


class AllocatorHistorySource(Source):
    """A snapshot of the CUDA allocator, with its history so far, at each reading of a call.

    Args:
        history (AllocatorHistory): recorded while the source is open. If it was begun before, it goes on.
        take (Callable): called with the call, the point of the reading, and the history to take a snapshot of.
        early (EarlyHistory, optional): what it continues.
    """

    one_thread = True

    def __init__(
        self,
        history: AllocatorHistory,
        take: Callable[[FunctionCall, str, AllocatorHistory], None],
        early: Optional[EarlyHistory] = None,
    ) -> None:
        self._history = history
        self._take = take
        self._early = early

    def open(self) -> None:
        self._history.start()
        if self._early is not None:
            self._early.hand_over()

    def close(self) -> None:
        self._history.cancel()

    def read(self, call: FunctionCall, point: str) -> Values:
        self._take(call, point, self._history)
        return {}


class SavedTensorsSource(Source):
    """Bytes that autograd saved since the start of the call, its backward pass included.

    ``packed_bytes_diff`` counts every save except of a parameter, ``saved_bytes_diff`` each storage once, without
    inputs. Calls that overlap share one pair of hooks.

    Args:
        model (Module): whose parameters are not counted.
        functions (optional): the user's pack and unpack functions.
    """

    one_thread = True

    def __init__(self, model: nn.Module, functions: Any = None) -> None:
        self._model = model
        self._functions = functions
        self._recorder: Optional[SavedTensorsRecorder] = None
        self._running_calls = 0

    def so_far(self) -> Optional[tuple[int, int]]:
        """``packed_bytes_diff`` and ``saved_bytes_diff`` since the first running call began; None if none runs."""
        return self._recorder.so_far() if self._recorder is not None else None

    def packed_so_far(self) -> Optional[int]:
        """The first of :meth:`so_far`."""
        packed, _ = self.so_far() or (None, None)
        return packed

    def close(self) -> None:
        recorder, self._recorder, self._running_calls = self._recorder, None, 0
        if recorder is not None:
            recorder.end()
            if recorder.error is not None:
                raise recorder.error

    def begin(self, call: FunctionCall) -> None:
        if self._recorder is None:
            recorder = SavedTensorsRecorder(self._model, self._functions)
            recorder.begin()
            self._recorder = recorder
        self._running_calls += 1
        self.restart(call)

    def restart(self, call: FunctionCall) -> None:
        call.notes['saved'] = self._recorder, self.so_far()

    def read(self, call: FunctionCall, point: str) -> Values:
        (recorder, before), now = call.notes['saved'], self.so_far()
        if recorder is not self._recorder or now is None:  # the source was closed during the call
            return {}
        return {'packed_bytes_diff': now[0] - before[0], 'saved_bytes_diff': now[1] - before[1]}

    def end(self, call: FunctionCall) -> None:
        if self._recorder is None or call.notes['saved'][0] is not self._recorder:
            return
        self._running_calls -= 1
        if not self._running_calls:
            self.close()


class ModuleMemorySource(Source):
    """Memory by category and module, of each call. Of calls within one another, each has a recording of its own.

    Args:
        make (Callable): returns a recorder for the model in its current state.
        take (Callable): called with the call and its recording.
    """

    one_thread = True

    def __init__(
        self, make: Callable[[], ModuleMemoryRecorder], take: Callable[[FunctionCall, ModuleMemory], None]
    ) -> None:
        self._make = make
        self._take = take
        self._recorders: dict[FunctionCall, ModuleMemoryRecorder] = {}

    def close(self) -> None:
        recorders, self._recorders = self._recorders, {}
        for recorder in recorders.values():
            recorder.cancel()

    def begin(self, call: FunctionCall) -> None:
        recorder = self._make()
        recorder.start()
        self._recorders[call] = recorder

    def end(self, call: FunctionCall) -> None:
        recorder = self._recorders.pop(call, None)
        if recorder is not None:
            self._take(call, recorder.stop())

    def training_function_begins(self, name: str, inputs: Any) -> None:
        for recorder in self._recorders.values():
            if name == FORWARD:
                recorder.begin_batch(inputs)
            elif name == OPTIMIZER_STEP:
                recorder.begin_optimizer()

    def training_function_ends(self, name: str) -> None:
        for recorder in self._recorders.values():
            if name == BACKWARD:
                recorder.end_backward()
