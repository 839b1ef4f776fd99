"""VizTracer: what Python does, call by call."""

from __future__ import annotations

import functools
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from composer.core import State
from composer.utils import dist

from composer_memprof.artifacts.files import link
from composer_memprof.artifacts.names import Naming, Stamp
from composer_memprof.artifacts.store import Part
from composer_memprof.callbacks.framework import exclusive
from composer_memprof.callbacks.framework.base import Output, ProfilingCallback, Ranks, Stages, when
from composer_memprof.callbacks.framework.child_files import ChildFile, child_files
from composer_memprof.recorders.python_calls.traced_children import TRACE_NAME
from composer_memprof.recorders.python_calls.viztracer import VizTracerRecorder, check_tracer_options
from composer_memprof.report.html.calls.call_timeline import write_call_timeline
from composer_memprof.schedule import ScheduleInput, window

_SUFFIXES = ('.viztracer.json', '.viztracer.cvf', '.json', '.cvf')
#: Between the default windows of the other callbacks that follow Python calls: the tenth batch.
_DEFAULT_SCHEDULE = window('1ba', skip='9ba')


class VizTracer(ProfilingCallback):
    """Records every Python call of a window, when and for how long, by VizTracer.

    Each window leaves VizTracer's JSON, for ``vizviewer``, Perfetto (ui.perfetto.dev) or chrome://tracing, and a page
    with the longest calls over time and every function's own time, which needs no installation and loads nothing from
    elsewhere (VizTracer's own HTML loads scripts from the internet). Both are made in a process of their own. Records
    no window in which another tool follows Python calls: Memray, ``with_stack``, a profiler of yours.

    >>> from composer_memprof import VizTracer
    >>> callback = VizTracer(ignore_c_function=True, schedule={'skip': '10ba', 'active': '2ba', 'every': '1000ba'})

    Args:
        tracer_entries (int): calls to keep; beyond it the oldest are dropped. Default: ``1000000``.
        ignore_c_function (bool): leave out functions that are not written in Python. Default: ``False``.
        patch (bool): trace processes too that are started in the window, by ``subprocess`` or ``multiprocessing``
            (DataLoader workers), until they end; each leaves a JSON of its own, which ``viztracer --combine`` joins.
            Default: ``False``.
        page (bool): the page. Default: ``True``.
        folder (str): format string over run variables. Default: ``'{run_name}/memprof'``.
        filename (str): format string. Ends in ``.json`` or ``.json.gz``, or in ``.cvf`` for VizTracer's own compressed form, which
            ``viztracer --decompress`` reads. Default: ``'rank{rank}.{batch}.viztracer.json'``.
        remote_file_name (str, optional): format string, with ``s3://`` or the like to that store, otherwise through
            Composer's logger. A folder without ``{batch}``, else a prefix. Default: ``None``, uploads nothing.
        overwrite (bool): replace files of the same name; otherwise they take ``.2``, … Default: ``False``.
        schedule (Schedule | dict | Callable, optional): Default: ``window('1ba', skip='9ba')``, the tenth batch.
        storage_options (dict, optional): for the store, beside the environment and fsspec's config.
        num_artifacts_to_keep (int): windows kept on this disk, once uploaded; -1 keeps all. Default: ``-1``.
        ranks (Sequence[int], optional): which ranks record. Default: all.
        stages (Sequence[str]): of ``train``, ``eval``, ``predict``. Default: ``('train',)``.
        compress (bool): gzip the JSON, which ``vizviewer`` and Perfetto read all the same. Default: ``False``.
        close_timeout (float): seconds that the close waits for uploads. Default: ``20``.
        tracer_options: any further option of :class:`viztracer.VizTracer`, such as ``max_stack_depth``,
            ``include_files``, ``log_func_args``, ``min_duration``; ``log_torch`` takes torch's profiler too.

    Raises:
        ValueError: for a parameter that is not allowed, here or when the Trainer is made; where viztracer is missing.
    """

    kind = 'viztracer'

    def __init__(
        self,
        tracer_entries: int = 1_000_000,
        ignore_c_function: bool = False,
        patch: bool = False,
        page: bool = True,
        folder: str = '{run_name}/memprof',
        filename: str = 'rank{rank}.{batch}.viztracer.json',
        remote_file_name: Optional[str] = None,
        overwrite: bool = False,
        schedule: Optional[ScheduleInput] = None,
        storage_options: Optional[Mapping[str, Any]] = None,
        num_artifacts_to_keep: int = -1,
        ranks: Ranks = None,
        stages: Stages = ('train',),
        compress: bool = False,
        close_timeout: float = 20.0,
        **tracer_options: Any,
    ) -> None:
        self._options = check_tracer_options(
            {'tracer_entries': tracer_entries, 'ignore_c_function': ignore_c_function, **tracer_options}
        )
        for name, value in (('patch', patch), ('page', page)):
            if not isinstance(value, bool):
                raise ValueError(f'{name}={value!r} is not allowed; it is true or false')
        plain = str(filename).removesuffix('.gz')
        suffix = next((suffix for suffix in _SUFFIXES if plain.endswith(suffix)), '.json')
        compress = compress or plain != str(filename)
        self._own_form = suffix.endswith('.cvf')
        if self._own_form and compress is True:
            raise ValueError(f'compress=True and filename={filename!r}: .cvf is compressed; give one of them')
        self._patch = patch
        self._page = page
        super().__init__(
            when(schedule, _DEFAULT_SCHEDULE, ranks, stages),
            Output(
                folder=folder,
                naming=Naming(filename, remote_file_name, suffix),
                storage_options=storage_options,
                overwrite=overwrite,
                num_artifacts_to_keep=num_artifacts_to_keep,
                compress=compress,
                close_timeout=close_timeout,
            ),
        )
        self.resources = frozenset(
            {exclusive.PYTHON_STACKS, *([exclusive.KINETO] if self._options.get('log_torch') else [])}
        )
        self._recorder: Optional[VizTracerRecorder] = None
        self._children: Optional[Path] = None
        self._late: list[tuple[Path, Stamp]] = []

    def _start(self, state: State, stamp: Stamp) -> None:
        del state, stamp  # unused
        if self._patch:
            self._children = self.store.folder / f'.{self.kind}.{os.getpid()}.{time.monotonic_ns()}.tmp'
        self._recorder = VizTracerRecorder(self._children, **self._options)
        self._recorder.start()

    def _batch_begins(self, state: State) -> None:
        if self._recorder is not None:
            self._recorder.mark(f'batch {state.timestamp.batch.value}')

    def _stop(self, state: State, stamp: Stamp) -> None:
        del state  # unused
        recorder, self._recorder = self._recorder, None
        folder, self._children = self._children, None
        assert recorder is not None
        trace = recorder.stop()
        suffix = self.output.naming.suffix
        write = trace.write_compressed if self._own_form else trace.write_json
        parts = [Part(self.kind, suffix, write, self.output.compress)]
        if self._page:
            title = f'{stamp.run_name}, rank {dist.get_global_rank()}, up to batch {stamp.timestamp.batch.value}'
            parts.append(
                Part(
                    f'{self.kind}.page',
                    f'{self._stem}.html',
                    lambda path: write_call_timeline(trace.events(), path, title),
                )
            )
        self.store.save(parts, stamp)
        if folder is not None:
            self._late.append((folder, stamp))

    @property
    def _stem(self) -> str:
        return self.output.naming.suffix.rpartition('.')[0]

    def _closing(self) -> None:
        """The traces of processes, which they write as they end, are taken once the training is over."""
        late, self._late = self._late, []
        for folder, stamp in late:
            files = [file for file in child_files(folder, TRACE_NAME + r'_(\d+)\.json') if file.path.stat().st_size]
            if files:
                self.store.save(list(map(self._child_part, files)), stamp, then=functools.partial(_remove, folder))
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def _child_part(self, file: ChildFile) -> Part:
        suffix = f'{self._stem}.process{file.pid}.json'
        return Part(f'{self.kind}.process', suffix, lambda path: link(file.path, path), self.output.compress)

    def _cancel(self) -> None:
        recorder, self._recorder = self._recorder, None
        folder, self._children = self._children, None
        try:
            if recorder is not None:
                recorder.cancel()
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


def _remove(folder: Path, paths: Mapping[str, Path]) -> None:
    if paths:
        shutil.rmtree(folder)
