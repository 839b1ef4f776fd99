"""MemProfiler's methods for readings by hand, as finetuning-scheduler names them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Optional

from composer_memprof.callbacks.framework.base import ProfilingCallback
from composer_memprof.callbacks.mem_profiler.memory_stats import MemoryStats
from composer_memprof.recorders.functions.recorder import FunctionMemoryRecorder
from composer_memprof.recorders.functions.source import END, START, FunctionCall


class ByHand(ProfilingCallback):
    """Readings of blocks and moments that the user's code names. All methods do nothing where nothing is recorded."""

    _stats: MemoryStats
    _functions: Optional[FunctionMemoryRecorder] = None
    #: The call that :meth:`snap` has begun, by thread and function; None if it is not read.
    _snapped: dict[tuple[int, str], Optional[FunctionCall]]

    @contextmanager
    def memprofile_ctx(self, name: str) -> Iterator[None]:
        """Read memory at the start and the end of the block, as of a function ``name``."""
        recorder = self._functions
        call = recorder.begin_training_function(name, is_marked=True) if recorder is not None else None
        try:
            yield
        finally:
            if recorder is not None:
                recorder.end_training_function(name, call)

    def snap(self, fn_name: str, iter_ctx: str, reset_mem_hooks: bool = False) -> None:
        """Read memory now, as ``rank.fn_name.iteration.iter_ctx``, if this call of the function is one that is read.

        ``'start'`` begins a call, any other word is a moment in it, and ``'end'`` ends it. Without a start, the reading
        is a call of its own. A start before the end of the call before, on the same thread, drops that call: an
        exception has ended it.

        >>> import tempfile, torch
        >>> from composer_memprof import MemProfiler
        >>> model, folder = torch.nn.Linear(8, 1), tempfile.TemporaryDirectory()
        >>> with folder, MemProfiler(warmup_iters=0, folder=folder.name).connect(model) as profiler:
        ...     profiler.snap('step', 'start')
        ...     loss = model(torch.ones(4, 8)).sum()
        ...     profiler.snap('step', 'before_backward')
        ...     loss.backward()
        ...     profiler.snap('step', 'end')
        >>> list(profiler.memory_stats)
        ['0.step.1.start', '0.step.1.before_backward', '0.step.1.end']
        >>> profiler.memory_stats['0.step.1.end']['npp_diff']
        128

        Args:
            fn_name (str): the function.
            iter_ctx (str): ``'start'``, ``'end'``, or a name of a moment between them.
            reset_mem_hooks (bool): what is counted within the call counts from here on. Default: ``False``.
        """
        recorder = self._functions
        if recorder is None:
            return
        key = threading.get_ident(), fn_name
        alone = key not in self._snapped and iter_ctx != START
        if iter_ctx == START or alone:
            recorder.cancel(self._snapped.pop(key, None))
            self._snapped[key] = recorder.begin_training_function(fn_name, is_marked=True, silent=alone)
        call = self._snapped.pop(key) if iter_ctx == END or alone else self._snapped[key]
        if iter_ctx not in (START, END):
            recorder.read(call, iter_ctx)
        if iter_ctx == END:
            recorder.end_training_function(fn_name, call)
        elif alone:
            recorder.cancel(call)
        elif reset_mem_hooks:
            recorder.restart(call)

    def dump_memory_stats(self) -> None:
        """Write the pickle of the open window's readings so far, where ``dump_memorystats_pickle`` is set.

        It is written in the background. The other files have each reading as soon as it was made, and a window's end
        writes what was not written before.

        >>> import glob, tempfile, torch
        >>> from composer_memprof import MemProfiler
        >>> folder = tempfile.TemporaryDirectory()
        >>> profiler = MemProfiler(warmup_iters=0, dump_memorystats_pickle=True, folder=folder.name)
        >>> with profiler.connect(torch.nn.Linear(8, 1)):
        ...     with profiler.memprofile_ctx('step'):
        ...         pass
        ...     profiler.dump_memory_stats()
        >>> sorted(glob.glob('*stats*', root_dir=folder.name))
        ['rank_0_memory_stats.pickle', 'rank_0_memory_stats.yaml']
        >>> folder.cleanup()
        """
        self._stats.dump()

    def remove_memprofiler_hooks(self) -> None:
        """Remove the hooks around the model's forward now, until the next fit or :meth:`connect`. Other readings go on.

        >>> import tempfile, torch
        >>> from composer_memprof import MemProfiler
        >>> model, folder = torch.nn.Linear(8, 1), tempfile.TemporaryDirectory()
        >>> with folder, MemProfiler(warmup_iters=0, folder=folder.name).connect(model) as profiler:
        ...     with profiler.memprofile_ctx('step'):
        ...         profiler.remove_memprofiler_hooks()
        ...         loss = model(torch.ones(4, 8)).sum()
        >>> end = profiler.memory_stats['0.step.1.end']
        >>> 'rss' in end, 'rss_diff' in end
        (True, False)
        """
        if self._functions is not None:
            self._functions.remove_hooks()
