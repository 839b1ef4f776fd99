"""Memray: who allocates host memory, and who does not give it back."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

from composer.core import State
from composer.utils import dist

from composer_memprof.artifacts.files import link
from composer_memprof.artifacts.names import Naming, Stamp
from composer_memprof.artifacts.store import GrowingFile, Part
from composer_memprof.callbacks.framework import exclusive
from composer_memprof.callbacks.framework.base import Output, ProfilingCallback, Ranks, Stages, when
from composer_memprof.callbacks.framework.child_files import ChildFile, child_files
from composer_memprof.recorders.python_calls.memray import (
    MemrayRecorder,
    check_tracker_arguments,
    read_statistics,
    write_flame_graph,
)
from composer_memprof.report.text.files import write_json, write_text
from composer_memprof.report.text.head import WindowHead
from composer_memprof.report.text.memray import memray_text
from composer_memprof.schedule import ScheduleInput, window

_SUFFIX = '.memray.bin'
#: Past the default windows of the other callbacks that follow Python calls: the eleventh batch and the twelfth.
_DEFAULT_SCHEDULE = window('2ba', skip='10ba')


class Memray(ProfilingCallback):
    """Records every allocation of host memory in a window, by memray, with its Python stack: tensors and all else.

    Each window leaves memray's own capture ``.bin`` (for ``memray tree``, ``table``, ``flamegraph --temporal``, …) and,
    made from it in a process of its own, a flame graph of what was held at the peak, one of what was not freed by the
    end, and figures as ``.json`` and ``.txt``. The pages load nothing from elsewhere. While a window is open its
    capture is there as ``….open.bin``, which memray reads even after a kill.

    Python's own allocator keeps what was freed for later use, so that objects show as its arenas, and as left over;
    ``trace_python_allocators=True`` follows each object, at a cost. Records no window in which another tool follows
    Python calls: VizTracer, ``with_stack``, a profiler or a memray tracker of yours.

    >>> from composer_memprof import Memray
    >>> callback = Memray(native_traces=True, schedule={'skip': '10ba', 'active': '3ba', 'every': '1000ba'})

    Args:
        native_traces (bool): stacks of native code too; slows recording and reports down. Default: ``False``.
        flamegraph (bool): the page of the peak. Default: ``True``.
        leaks (bool): the page of what was left over. Default: ``True``.
        statistics (bool): the figures. Default: ``True``.
        folder (str): format string over run variables. Default: ``'{run_name}/memprof'``.
        filename (str): format string. Default: ``'rank{rank}.{batch}.memray.bin'``.
        remote_file_name (str, optional): format string, with ``s3://`` or the like to that store, otherwise through
            Composer's logger. A folder without ``{batch}``, else a prefix. Default: ``None``, uploads nothing.
        overwrite (bool): replace files of the same name; otherwise they take ``.2``, … Default: ``False``.
        schedule (Schedule | dict | Callable, optional): Default: ``window('2ba', skip='10ba')``, one window over
            batches 10 and 11.
        storage_options (dict, optional): for the store, beside the environment and fsspec's config.
        num_artifacts_to_keep (int): windows kept on this disk, once uploaded; -1 keeps all. Default: ``-1``.
        ranks (Sequence[int], optional): which ranks record. Default: all.
        stages (Sequence[str]): of ``train``, ``eval``, ``predict``. Default: ``('train',)``.
        compress (bool): gzip the capture, which memray reads once it is unzipped. Default: ``False``.
        close_timeout (float): seconds that the close waits for uploads. Default: ``20``.
        tracker_arguments: any further argument of :class:`memray.Tracker`, such as ``trace_python_allocators``,
            ``memory_interval_ms``, ``file_format`` (also as a word, ``aggregated_allocations``), or ``follow_fork``,
            which leaves a capture of each process that is forked in the window.

    Raises:
        ValueError: for a parameter that is not allowed, here or when the Trainer is made; where memray is missing.
    """

    kind = 'memray'
    resources = frozenset({exclusive.PYTHON_STACKS})

    def __init__(
        self,
        native_traces: bool = False,
        flamegraph: bool = True,
        leaks: bool = True,
        statistics: bool = True,
        folder: str = '{run_name}/memprof',
        filename: str = 'rank{rank}.{batch}.memray.bin',
        remote_file_name: Optional[str] = None,
        overwrite: bool = False,
        schedule: Optional[ScheduleInput] = None,
        storage_options: Optional[Mapping[str, Any]] = None,
        num_artifacts_to_keep: int = -1,
        ranks: Ranks = None,
        stages: Stages = ('train',),
        compress: bool = False,
        close_timeout: float = 20.0,
        **tracker_arguments: Any,
    ) -> None:
        self._arguments = check_tracker_arguments({'native_traces': native_traces, **tracker_arguments})
        self._reports = {'flamegraph': flamegraph, 'leaks': leaks, 'statistics': statistics}
        for name, value in self._reports.items():
            if not isinstance(value, bool):
                raise ValueError(f'{name}={value!r} is not allowed; it is true or false')
        super().__init__(
            when(schedule, _DEFAULT_SCHEDULE, ranks, stages),
            Output(
                folder=folder,
                naming=Naming(filename, remote_file_name, _SUFFIX if filename.endswith(_SUFFIX) else '.bin'),
                storage_options=storage_options,
                overwrite=overwrite,
                num_artifacts_to_keep=num_artifacts_to_keep,
                compress=compress,
                close_timeout=close_timeout,
            ),
        )
        self._stem = self.output.naming.suffix.removesuffix('.bin')
        self._recorder: Optional[MemrayRecorder] = None
        self._file: Optional[GrowingFile] = None
        self._late: list[tuple[ChildFile, Stamp]] = []

    def _start(self, state: State, stamp: Stamp) -> None:
        del state  # unused
        self._file = self.store.grow(f'{self.kind}.open', f'{self._stem}.open.bin', stamp)
        self._recorder = MemrayRecorder(self._file.path, **self._arguments)
        self._recorder.start()

    def _stop(self, state: State, stamp: Stamp) -> None:
        recorder, self._recorder = self._recorder, None
        file, self._file = self._file, None
        assert recorder is not None and file is not None
        recorder.stop()
        children = list(child_files(file.path.parent, re.escape(file.path.name) + r'\.(\d+)'))
        self._late += [(child, stamp) for child in children if not child.is_whole()]
        whole = [child for child in children if child.is_whole()]
        head = WindowHead(dist.get_global_rank(), state.timestamp.epoch.value, state.timestamp.batch.value)
        parts = [
            Part(self.kind, self.output.naming.suffix, file.link_to, self.output.compress),
            *self._report_parts(file.path, head),
            *map(self._child_part, whole),
        ]
        self.store.save(parts, stamp, then=lambda paths: self._saved(paths, file, whole))

    def _report_parts(self, capture: Path, head: WindowHead) -> list[Part]:
        parts = []
        if self._reports['statistics']:
            read = functools.cache(lambda: read_statistics(capture))
            parts += [
                Part(
                    f'{self.kind}.statistics',
                    f'{self._stem}.json',
                    lambda path: write_json({**head.as_dict(), **asdict(read())}, path),
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
        if self.kind in paths:  # otherwise the capture stays where it is, listed as open
            file.drop()
            for child in children:
                child.remove_if_in(paths)

    def _closing(self) -> None:
        late, self._late = self._late, []
        for child, stamp in late:
            self.store.save([self._child_part(child)], stamp, then=child.remove_if_in)

    def _cancel(self) -> None:
        recorder, self._recorder = self._recorder, None
        file, self._file = self._file, None
        try:
            if recorder is not None:
                recorder.stop()
        finally:
            if file is not None:
                file.drop()
