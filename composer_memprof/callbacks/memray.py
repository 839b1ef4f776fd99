"""Memray: who allocates host memory, and who does not give it back."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

from composer.core import State

from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.artifacts.store import GrowingFile, Part
from composer_memprof.artifacts.writing.disk import link
from composer_memprof.callbacks.framework.base import ProfilingCallback
from composer_memprof.callbacks.framework.child_files import ChildFile, child_files
from composer_memprof.callbacks.framework.options import COMPRESS, split_shared, takes_shared_parameters
from composer_memprof.callbacks.framework.windows import exclusive
from composer_memprof.messages import check_switches
from composer_memprof.recorders.python_calls.memray import (
    MemrayRecorder,
    check_tracker_arguments,
    import_reports,
    peak_bytes,
    read_statistics,
    write_flame_graph,
)
from composer_memprof.report.text.tables.files import write_json, write_text
from composer_memprof.report.text.tables.head import WindowHead
from composer_memprof.report.text.tables.memray import memray_text
from composer_memprof.schedule import window


@takes_shared_parameters(
    filename='rank{rank}.{batch}.memray.bin',
    docs={
        'schedule': "which batches are recorded. Default: ``window('2ba', skip='10ba')``, one window over batches 10 "
        'and 11, after the default windows of the other callbacks that follow Python calls.',
        'compress': f'the capture: {COMPRESS}; memray reads it after decompressing. Default: ``False``.',
    },
)
class Memray(ProfilingCallback):
    """Records every allocation of host memory in a window, with its Python stack, by memray: tensors and all else.

    Each window writes memray's own capture ``.bin`` (for ``memray tree``, ``table``, ``flamegraph --temporal``, …) and,
    made from it in a child process, a flame graph of the peak, one of what was not freed by the end, and figures as
    ``.json`` and ``.txt``. The pages load nothing from elsewhere. While a window is open its capture is
    ``….open.bin``, which memray reads even after a kill. The peak is logged as ``memray/peak_bytes``: the most memory that
    was allocated in the window and held at one time.

    Python's own allocator keeps freed memory for later use, so objects appear as its arenas, and as left over;
    ``trace_python_allocators=True`` follows each object, which is slower. Skips windows in which another tool follows
    Python calls: VizTracer, ``with_stack``, a profiler or a memray tracker of yours.

    >>> from composer_memprof import Memray
    >>> callback = Memray(native_traces=True, schedule={'skip': '10ba', 'active': '3ba', 'every': '1000ba'})

    Args:
        native_traces (bool): record stacks of native code too; slows recording and reports down. Default: ``False``.
        flamegraph (bool): write the page of the peak. Default: ``True``.
        leaks (bool): write the page of what was not freed. Default: ``True``.
        statistics (bool): write the figures. Default: ``True``.
        <shared parameters>
        tracker_arguments: any further argument of :class:`memray.Tracker`, such as ``trace_python_allocators``,
            ``memory_interval_ms``, ``file_format`` (a name is allowed: ``aggregated_allocations``), or
            ``follow_fork``, which writes a capture of each process forked in the window.

    Raises:
        ValueError: for a parameter that is not allowed, here or when the Trainer is made; if memray is not installed.
    """

    kind = 'memray'
    suffix = '.memray.bin'
    default_schedule = window('2ba', skip='10ba')
    resources = frozenset({exclusive.PYTHON_STACKS})

    def __init__(
        self,
        native_traces: bool = False,
        flamegraph: bool = True,
        leaks: bool = True,
        statistics: bool = True,
        **tracker_arguments: Any,
    ) -> None:
        shared, tracker_arguments = split_shared(tracker_arguments)
        self._arguments = check_tracker_arguments({'native_traces': native_traces, **tracker_arguments})
        self._reports = {'flamegraph': flamegraph, 'leaks': leaks, 'statistics': statistics}
        check_switches(**self._reports)
        super().__init__(**shared)
        import_reports()
        self._stem = self.output.naming.suffix.removesuffix('.bin')
        self._recorder: Optional[MemrayRecorder] = None
        self._file: Optional[GrowingFile] = None
        self._incomplete: list[tuple[ChildFile, Stamp]] = []
        self._begun_at = 0

    def _start(self, state: State, stamp: Stamp) -> None:
        self._begun_at = state.timestamp.batch.value
        self._file = self.store.grow(f'{self.kind}.open', f'{self._stem}.open.bin', stamp)
        self._recorder = MemrayRecorder(self._file.path, **self._arguments)
        self._recorder.start()

    def _stop(self, state: State, stamp: Stamp) -> None:
        recorder, self._recorder = self._recorder, None
        file, self._file = self._file, None
        assert recorder is not None and file is not None
        recorder.stop()
        group = self._metric_group('memray', self._stage)
        self._window_metrics.add({f'{group}/peak_bytes': peak_bytes(file.path)})
        children = list(child_files(file.path.parent, re.escape(file.path.name) + r'\.(\d+)'))
        self._incomplete += [(child, stamp) for child in children if not child.is_complete()]
        complete = [child for child in children if child.is_complete()]
        parts = [
            Part(self.kind, self.output.naming.suffix, file.link_to, self.output.compress),
            *self._report_parts(file.path, self._head(state), state.timestamp.batch.value - self._begun_at),
            *map(self._child_part, complete),
        ]
        self.store.save(parts, stamp, on_saved=lambda paths: self._saved(paths, file, complete))

    def _report_parts(self, capture: Path, head: WindowHead, batches: int) -> list[Part]:
        parts = []
        if self._reports['statistics']:
            read = functools.cache(lambda: read_statistics(capture))
            parts += [
                Part(
                    f'{self.kind}.statistics',
                    f'{self._stem}.json',
                    lambda path: write_json({**head.as_dict(), 'batches': batches, **asdict(read())}, path),
                ),
                Part(
                    f'{self.kind}.table',
                    f'{self._stem}.txt',
                    lambda path: write_text(memray_text(head, read()), path),
                ),
            ]
        if self._reports['flamegraph']:
            page = Part(f'{self.kind}.page', f'{self._stem}.html', lambda path: write_flame_graph(capture, path))
            parts.append(page)
        if self._reports['leaks']:
            page = Part(
                f'{self.kind}.leaks',
                f'{self._stem}.leaks.html',
                lambda path: write_flame_graph(capture, path, leaks=True),
            )
            parts.append(page)
        return parts

    def _child_part(self, child: ChildFile) -> Part:
        suffix = f'{self._stem}.process{child.pid}.bin'
        return Part(f'{self.kind}.process', suffix, lambda path: link(child.path, path), self.output.compress)

    def _saved(self, paths: Mapping[str, Path], file: GrowingFile, children: list[ChildFile]) -> None:
        if self.kind in paths:  # otherwise the capture stays in place, listed as open
            file.drop()
            for child in children:
                child.remove_if_saved(paths)

    def _before_close(self) -> None:
        incomplete, self._incomplete = self._incomplete, []
        for child, stamp in incomplete:
            self.store.save([self._child_part(child)], stamp, on_saved=child.remove_if_saved)

    def _cancel(self) -> None:
        recorder, self._recorder = self._recorder, None
        file, self._file = self._file, None
        try:
            if recorder is not None:
                recorder.stop()
        finally:
            if file is not None:
                file.drop()
