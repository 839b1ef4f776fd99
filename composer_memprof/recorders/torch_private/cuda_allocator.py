"""The CUDA caching allocator: its history, snapshots, locks, and its callback before an out-of-memory error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from composer_memprof.recorders.torch_private import private

#: ``(enabled, context=…, stacks=…, max_entries=…)``: start recording, or stop with ``None``.
record_memory_history = private('torch.cuda.memory._record_memory_history', module=__name__)
#: ``()``: the history and the segments as plain dicts, lists, strings and numbers.
memory_snapshot = private('torch.cuda.memory._snapshot', module=__name__)
#: ``(device)``: statistics; takes and releases the lock of the device's allocator.
memory_stats = private('torch._C._cuda_memoryStats', module=__name__)
#: ``(observer)``: call ``observer(device, requested, total, free)`` before each error. It cannot be removed.
attach_out_of_memory_observer = private('torch._C._cuda_attach_out_of_memory_observer', module=__name__)
#: ``(function)``: call it once CUDA is started; now, if it is.
call_when_started = private('torch.cuda._lazy_call', module=__name__)
#: What :data:`record_memory_history` calls: ``(enabled, context, stacks, max_entries)``.
_set_history = private('torch._C._cuda_record_memory_history', module=__name__)
_dump_snapshot = private('torch.cuda.memory._dump_snapshot', module=__name__)


def call_when_history_is_set(function: Callable[[], bool]) -> None:
    """Call ``function`` each time that anyone starts or stops the recording; False refuses it. It can't be undone."""

    def set_history(*arguments: Any) -> Any:
        return _set_history(*arguments) if function() else None

    torch._C._cuda_record_memory_history = set_history  # type: ignore[assignment]


def call_when_snapshot_is_dumped(function: Callable[[str], bool]) -> None:
    """Call ``function`` with the file of each snapshot that a script dumps; False refuses it. It can't be undone."""

    def dump(filename: Any = 'dump_snapshot.pickle', *arguments: Any, **settings: Any) -> None:
        if function(filename):
            _dump_snapshot(filename, *arguments, **settings)

    torch.cuda.memory._dump_snapshot = dump  # type: ignore[assignment]
