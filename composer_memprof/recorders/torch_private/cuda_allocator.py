"""The CUDA caching allocator: its history, snapshots, locks, and its callback before an out-of-memory error."""

from __future__ import annotations

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
