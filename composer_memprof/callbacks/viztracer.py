"""VizTracer: what Python does, call by call."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from composer.core import State
from composer.utils import dist

from composer_memprof.artifacts.naming.compression import agreed_compress, codec_for, strip_suffix
from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.artifacts.store import Part
from composer_memprof.artifacts.writing.disk import link
from composer_memprof.artifacts.writing.temporary_files import temporary_name
from composer_memprof.callbacks.framework.child_files import ChildFile, child_files
from composer_memprof.callbacks.framework.options import COMPRESS, split_shared, takes_shared_parameters
from composer_memprof.callbacks.framework.windows import exclusive
from composer_memprof.callbacks.framework.windows.from_batch_end import RecordsFromBatchEnd
from composer_memprof.messages import check_switches, warn
from composer_memprof.recorders.python_calls.traced_children import TRACE_NAME
from composer_memprof.recorders.python_calls.viztracer import VizTracerRecorder, check_tracer_options
from composer_memprof.report.html.calls.call_timeline import write_call_timeline
from composer_memprof.schedule import window

_SUFFIXES = ('.viztracer.json', '.viztracer.cvf', '.json', '.cvf')


@takes_shared_parameters(
    filename='rank{rank}.{batch}.viztracer.json',
    docs={
        'filename': "format string. Ends in ``.json`` or ``.json.gz``, or in ``.cvf`` for VizTracer's own compressed "
        "form, which ``viztracer --decompress`` reads. Default: ``'rank{rank}.{batch}.viztracer.json'``.",
        'schedule': "which batches are recorded. Default: ``window('1ba', skip='9ba')``, the tenth batch, between the "
        'default windows of the other callbacks that follow Python calls.',
        'compress': f'the JSON: {COMPRESS}. ``vizviewer`` and Perfetto read gzip. Default: ``False``.',
    },
)
class VizTracer(RecordsFromBatchEnd):
    """Records every Python call of a window, when and for how long, by VizTracer.

    Each window writes VizTracer's JSON, for ``vizviewer``, Perfetto (ui.perfetto.dev) or chrome://tracing, and a page
    with the longest calls over time and every function's own time, which needs no installation and loads nothing from
    elsewhere (VizTracer's own HTML loads scripts from the internet). Both are made in a child process. Skips windows
    in which another tool follows Python calls: Memray, ``with_stack``, a profiler of yours.

    >>> from composer_memprof import VizTracer
    >>> callback = VizTracer(ignore_c_function=True, schedule={'skip': '10ba', 'active': '2ba', 'every': '1000ba'})

    Args:
        tracer_entries (int): calls to keep; beyond it the oldest are dropped. Default: ``1000000``.
        ignore_c_function (bool): leave out functions that are not written in Python. Default: ``False``.
        patch (bool): also trace processes started in the window by ``subprocess`` or ``multiprocessing`` (DataLoader
            workers), until they end; each writes a JSON of its own, which ``viztracer --combine`` joins. DataLoader
            workers start before the first batch of an epoch: a window that begins with that batch, as
            ``{'active': '1ba'}``, contains their start. Default: ``False``.
        page (bool): write the page. Default: ``True``.
        <shared parameters>
        tracer_options: any further option of :class:`viztracer.VizTracer`, such as ``max_stack_depth``,
            ``include_files``, ``log_func_args``, ``min_duration``; ``log_torch`` uses torch's profiler too.

    Raises:
        ValueError: for a parameter that is not allowed, here or when the Trainer is made; if viztracer is not installed.
    """

    kind = 'viztracer'
    default_schedule = window('1ba', skip='9ba')
    resources = frozenset({exclusive.PYTHON_STACKS})

    def __init__(
        self,
        tracer_entries: int = 1_000_000,
        ignore_c_function: bool = False,
        patch: bool = False,
        page: bool = True,
        **tracer_options: Any,
    ) -> None:
        shared, tracer_options = split_shared(tracer_options)
        self._options = check_tracer_options(
            {'tracer_entries': tracer_entries, 'ignore_c_function': ignore_c_function, **tracer_options}
        )
        check_switches(patch=patch, page=page)
        filename = shared['filename']
        plain = strip_suffix(str(filename))
        suffix = next((suffix for suffix in _SUFFIXES if plain.endswith(suffix)), '.json')
        shared['compress'] = agreed_compress(shared['compress'], str(filename))
        self._own_form = suffix.endswith('.cvf')
        if self._own_form and codec_for(shared['compress']) is not None:
            raise ValueError(
                f'compress={shared["compress"]!r} and filename={filename!r}: .cvf is compressed; give one of them'
            )
        self._patch = patch
        self._page = page
        super().__init__(suffix=suffix, **shared)
        if self._options.get('log_torch'):
            self.resources |= {exclusive.KINETO}
        self._recorder: Optional[VizTracerRecorder] = None
        self._children: Optional[Path] = None
        self._children_of_windows: list[tuple[Path, Stamp]] = []

    def _may_start(self, stage: str, state: State) -> bool:
        # Only to trace the DataLoader workers, which start before the epoch's first batch.
        return self._patch and super()._may_start(stage, state)

    def _start_early(self, state: State) -> None:
        del state  # unused
        self._start_recorder()

    def _start(self, state: State, stamp: Stamp) -> None:
        del state, stamp  # unused
        if self._recorder is None:
            self._start_recorder()

    def _start_recorder(self) -> None:
        if self._patch:
            self._children = self.store.folder / temporary_name(self.kind)
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
        if folder is not None and not recorder.traced_children:
            self._say_none_started(stamp)
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
            self._children_of_windows.append((folder, stamp))

    def _say_none_started(self, stamp: Stamp) -> None:
        if 'patch' not in self._warned:
            self._warned.add('patch')
            warn(
                f'{type(self).__name__}(patch=True) traces processes that start within its windows; none started in the '
                f'one up to batch {stamp.timestamp.batch.value}. DataLoader workers start before the first batch of an '
                "epoch; to trace them, begin the window with that batch, as schedule={'active': '1ba'}"
            )

    @property
    def _stem(self) -> str:
        return self.output.naming.suffix.rpartition('.')[0]

    def _before_close(self) -> None:
        """Child processes write their traces when they end: save them once training is over."""
        folders, self._children_of_windows = self._children_of_windows, []
        for folder, stamp in folders:
            files = [file for file in child_files(folder, TRACE_NAME + r'_(\d+)\.json') if file.path.stat().st_size]
            if files:
                self.store.save(list(map(self._child_part, files)), stamp, on_saved=functools.partial(_remove, folder))
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def _child_part(self, file: ChildFile) -> Part:
        suffix = f'{self._stem}.process{file.pid}.json'
        return Part(f'{self.kind}.process', suffix, lambda path: link(file.path, path), self.output.compress)

    def _cancel(self) -> None:
        super()._cancel()
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
