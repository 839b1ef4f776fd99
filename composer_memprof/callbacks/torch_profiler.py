"""TorchProfiler: where the time goes, operator by operator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

import torch
from composer.core import State, Timestamp
from composer.loggers import Logger
from composer.utils import dist

from composer_memprof.artifacts.naming.compression import add_suffix, agreed_compress, strip_suffix
from composer_memprof.artifacts.naming.names import Naming, Stamp, check_run_name
from composer_memprof.artifacts.store import Part
from composer_memprof.callbacks.framework.options import (
    COMPRESS,
    When,
    check_kept,
    check_naming,
    split_shared,
    takes_shared_parameters,
)
from composer_memprof.callbacks.framework.run_names import run_folder
from composer_memprof.callbacks.framework.windows import composer_profiler, exclusive
from composer_memprof.callbacks.framework.windows.from_batch_end import RecordsFromBatchEnd
from composer_memprof.messages import check_one_of, check_switches, must_be
from composer_memprof.recorders import kineto
from composer_memprof.report.html.memory_timeline import write_memory_timeline
from composer_memprof.report.text.tables.files import write_text
from composer_memprof.schedule import window
from composer_memprof.schedule.parsing import as_schedule

_TIMELINE_NEEDS = ('record_shapes', 'profile_memory', 'with_stack')


@takes_shared_parameters(
    folder='{run_name}/torch_traces',
    filename='rank{rank}.{batch}.pt.trace.json',
    remote_file_name='{run_name}/torch_traces/rank{rank}.{batch}.pt.trace.json',
    docs={
        'schedule': "which batches are recorded. Default: that of the Trainer's Profiler, if there is one, else "
        "``window('4ba', skip='4ba', warmup='1ba')``, one window over batches 5 to 8.",
        'compress': f'the trace: {COMPRESS}, whose suffix both its names get. Perfetto reads gzip. Default: ``False``.',
    },
    order=(
        # Composer's parameters, in its order
        *('folder', 'filename', 'remote_file_name', 'memory_filename', 'memory_remote_file_name', 'overwrite'),
        *('use_gzip', 'record_shapes', 'profile_memory', 'with_stack', 'with_flops', 'num_traces_to_keep'),
        *('schedule', 'storage_options', 'num_artifacts_to_keep', 'ranks', 'stages', 'compress'),
        *('summary_sort_by', 'summary_row_limit', 'close_timeout'),
        *('summary_max_name_column_width', 'summary_group_by_input_shapes', 'on_full', 'probe'),
    ),
)
class TorchProfiler(RecordsFromBatchEnd):
    """Records windows with :class:`torch.profiler.profile`, as traces for TensorBoard, Perfetto or chrome://tracing.

    Replaces :class:`composer.profiler.TorchProfiler`: the same parameters, with or without a Profiler in the Trainer.
    With one (and Composer's own TorchProfiler switched off) it follows that Profiler's schedule, unless it has its
    own, and passes its traces to that Profiler's trace handlers. A text summary is written beside each trace.

    As in Composer's, a step (``ProfilerStep#12``) lasts from the end of one batch to the end of the next, so it contains
    the loading of its batch, and an evaluation in between. A window begins where the batch before it ended; if an
    evaluation follows there, after it. Steps of ``eval`` and ``predict`` count their stage's batches over the run.

    >>> from composer_memprof import TorchProfiler
    >>> callback = TorchProfiler(schedule={'skip': '10ba', 'warmup': '1ba', 'active': '2ba'}, with_modules=True)

    Args:
        memory_filename (str, optional): format string of a page with memory over time, ending in ``.html``. Needs
            ``record_shapes``, ``profile_memory`` and ``with_stack``. Default: ``None``, no page.
        memory_remote_file_name (str, optional): as ``remote_file_name``, for that page.
        use_gzip (bool): same as ``compress='gzip'``. Default: ``False``.
        record_shapes (bool): record the input shapes of each operator. Default: ``False``.
        profile_memory (bool): record allocations, in bytes. Default: ``True``.
        with_stack (bool): record the Python stack of each operator. Default: ``False``.
        with_flops (bool): torch's estimate for matrix products and convolutions. Default: ``True``.
        num_traces_to_keep (int): same as ``num_artifacts_to_keep``. Default: ``-1``.
        summary_sort_by (str): key of ``key_averages().table`` that the summary is sorted by.
            Default: ``'cpu_time_total'``.
        summary_row_limit (int): operators in the summary; 0 writes none, -1 all. Default: ``20``.
        summary_max_name_column_width (int): characters of an operator's name, above which the summary cuts it; 0 cuts
            none. Default: ``55``.
        summary_group_by_input_shapes (bool): give each operator a row for each of its input shapes. Needs
            ``record_shapes``. Default: ``False``.
        <shared parameters>
        profile_arguments: any further argument of :class:`torch.profiler.profile`, such as ``with_modules``,
            ``activities`` (names are allowed), ``experimental_config`` (a mapping is allowed).

    Attributes:
        saved_traces (list[tuple[Timestamp, list[Path]]]): for each window whose files are kept, when it was saved and
            the path of each rank's trace, the newest last. A path is valid only on its rank's node.

    Raises:
        ValueError: for a parameter that is not allowed, here or when the Trainer is made.
    """

    kind = 'torch_profiler'
    torch_needs = {'': kineto.NEEDS, 'memory_filename': kineto.MEMORY_TIMELINE_NEEDS}
    #: If the Trainer has no Profiler to follow: four batches are skipped, one warms up, four are recorded.
    default_schedule = window('4ba', skip='4ba', warmup='1ba')

    def __init__(
        self,
        memory_filename: Optional[str] = None,
        memory_remote_file_name: Optional[
            str
        ] = '{run_name}/torch_memory_traces/rank{rank}.{batch}.pt.trace.memory.html',
        use_gzip: bool = False,
        record_shapes: bool = False,
        profile_memory: bool = True,
        with_stack: bool = False,
        with_flops: bool = True,
        num_traces_to_keep: int = -1,
        summary_sort_by: str = 'cpu_time_total',
        summary_row_limit: int = 20,
        summary_max_name_column_width: int = 55,
        summary_group_by_input_shapes: bool = False,
        **profile_arguments: Any,
    ) -> None:
        shared, profile_arguments = split_shared(profile_arguments)
        check_switches(use_gzip=use_gzip)
        check_kept('num_traces_to_keep', num_traces_to_keep, shared['remote_file_name'])
        kept = shared['num_artifacts_to_keep']
        if -1 not in (num_traces_to_keep, kept) and num_traces_to_keep != kept:
            raise ValueError(
                f'num_traces_to_keep={num_traces_to_keep} and num_artifacts_to_keep={kept} differ; give one of them'
            )
        check_one_of('summary_sort_by', summary_sort_by, kineto.SORT_KEYS)
        if not isinstance(summary_row_limit, int) or summary_row_limit < -1:
            raise must_be('summary_row_limit', '-1 (all), 0 (none) or a number of rows', summary_row_limit)
        if not _is_column_width(summary_max_name_column_width):
            raise must_be(
                'summary_max_name_column_width',
                '0 (names are not cut) or a whole number from 4',
                summary_max_name_column_width,
            )
        check_switches(summary_group_by_input_shapes=summary_group_by_input_shapes)
        if summary_group_by_input_shapes and not record_shapes:
            raise ValueError('summary_group_by_input_shapes=True needs record_shapes=True')
        filename = shared['filename']
        shared['num_artifacts_to_keep'] = kept if kept != -1 else num_traces_to_keep
        shared['compress'] = agreed_compress(shared['compress'], str(filename), use_gzip=use_gzip)
        self._follows_composer = shared['schedule'] is None
        super().__init__(suffix='.json' if strip_suffix(filename).endswith('.json') else '', **shared)
        self._arguments = kineto.check_profile_arguments(
            {
                'record_shapes': record_shapes,
                'profile_memory': profile_memory,
                'with_stack': with_stack,
                'with_flops': with_flops,
                **profile_arguments,
            }
        )
        self._memory_naming = self._check_memory_names(memory_filename, memory_remote_file_name)
        self._summary = kineto.SummaryTable(
            summary_sort_by, summary_row_limit, summary_max_name_column_width, summary_group_by_input_shapes
        )
        self._step: Any = None
        self._may_merge = self._is_merged = False
        self.saved_traces: list[tuple[Timestamp, list[Path]]] = []

    def _check_memory_names(self, filename: Optional[str], remote: Optional[str]) -> Optional[Naming]:
        for name, value in (('memory_filename', filename), ('memory_remote_file_name', remote)):
            if value is not None and not value.endswith('.html'):
                raise ValueError(f'{name}={value!r} must end with .html')
        if filename is None:
            return None
        missing = [name for name in _TIMELINE_NEEDS if not self._arguments[name]]
        if missing:
            raise ValueError(f'memory_filename={filename!r} needs {", ".join(f"{name}=True" for name in missing)}')
        naming = Naming(filename, remote, '.html')
        check_naming(naming, 'memory_')
        return naming

    def _torch_needs(self, state: State) -> tuple[ModuleType, ...]:
        timeline = self.torch_needs['memory_filename'] if self._memory_naming is not None else ()
        return (*super()._torch_needs(state), *timeline)

    def _check(self, state: State) -> None:
        self.saved_traces = []
        if self._memory_naming is not None:
            check_run_name(state.run_name, self._memory_naming.filename, self._memory_naming.remote)
        served = state.profiler is not None and not composer_profiler.is_present(state)
        if self._follows_composer:
            schedule = as_schedule(state.profiler.schedule) if served and state.profiler else self.default_schedule
            self.when = When(schedule, self.when.ranks, self.when.stages)
        self._may_merge = served and composer_profiler.has_trace_handlers(state)
        self.resources = frozenset({exclusive.KINETO})
        if self._arguments['with_stack']:
            self.resources |= {exclusive.PYTHON_STACKS}
        self.kineto = exclusive.kineto_for(self, self.earlier_callbacks(state), self._arguments)

    def batch_start(self, state: State, logger: Logger) -> None:
        super().batch_start(state, logger)
        if self.is_recording:
            logger.log_traces({'profiler/state': 'RECORD'})

    def _prepare(self, state: State) -> None:
        del state  # unused
        assert self.kineto is not None
        self.kineto.prepare()

    def _start_early(self, state: State) -> None:
        del state  # unused
        assert self.kineto is not None
        self.kineto.start(self)

    def _start(self, state: State, stamp: Stamp) -> None:
        del state, stamp  # unused
        assert self.kineto is not None
        self.kineto.start(self, {'global_rank': json.dumps(dist.get_global_rank())})

    def _next_batch_awaited(self, stage: str) -> None:
        if self._step is None:
            # TensorBoard's plugin recognizes steps by this name.
            self._step = torch.profiler.record_function(f'ProfilerStep#{self._windows.count(stage)}')
            self._step.__enter__()

    def _batch_begins(self, state: State) -> None:
        self._next_batch_awaited(self._stage)
        self._is_merged = self._may_merge and (self._follows_composer or composer_profiler.is_active(state))

    def _batch_ended(self, state: State) -> None:
        del state  # unused
        self._end_step()

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def _stop(self, state: State, stamp: Stamp) -> None:
        self._end_step()
        assert self.kineto is not None
        result = self.kineto.stop(self)
        parts = [
            Part(
                self.kind,
                self.output.naming.suffix,
                lambda path: kineto.export_trace(result, path),
                self.output.compress,
            )
        ]
        if self._summary.row_limit:
            text = Part(
                f'{self.kind}.summary',
                '.summary.txt',
                lambda path: write_text(kineto.summarize(result, self._summary), path),
            )
            parts.append(text)
        if self._memory_naming is not None:
            device = f'cuda:{torch.cuda.current_device()}' if state.device.name == 'gpu' else 'cpu'
            page = Part(
                f'{self.kind}.memory',
                '.html',
                lambda path: write_memory_timeline(kineto.memory_timeline(result, device), path),
                naming=self._memory_naming,
            )
            parts.append(page)
        merged = self._is_merged
        if self._may_merge and not merged and 'merge' not in self._warned:
            self._warned.add('merge')
            composer_profiler.explain_missing(type(self).__name__, state.timestamp.batch.value)
        self.store.save(
            parts,
            stamp,
            inline=merged,  # Composer's trace handlers read the file within this event
            on_saved=lambda paths: self._saved(state, stamp, paths, merged),
        )

    def _saved(self, state: State, stamp: Stamp, paths: dict[str, Path], merged: bool) -> None:
        trace = paths.get(self.kind)
        if trace is None:
            return
        self.saved_traces.append((stamp.timestamp, self._paths_of_all_ranks(stamp, trace)))
        if merged and state.profiler is not None:
            state.profiler.record_chrome_json_trace_file(trace)

    def _paths_of_all_ranks(self, stamp: Stamp, trace: Path) -> list[Path]:
        """The real path on this rank, and the expected paths on the others."""
        own = dist.get_global_rank()
        return [trace if rank == own else self._path_of(stamp, rank) for rank in range(dist.get_world_size())]

    def _path_of(self, stamp: Stamp, rank: int) -> Path:
        suffix = add_suffix(self.output.naming.suffix, self.output.compress)
        name = self.output.naming.local(replace(stamp, rank=rank), suffix, 1)
        state = self._state() if self._state is not None else None
        folder = self.folder_path if state is None else run_folder(self.output.folder, state, rank)
        return folder.absolute() / name

    def _on_removed(self, paths: list[Path]) -> None:
        own = dist.get_global_rank()
        gone = {str(path) for path in paths}
        self.saved_traces = [trace for trace in self.saved_traces if str(trace[1][own]) not in gone]

    def _cancel(self) -> None:
        super()._cancel()
        self._end_step()
        assert self.kineto is not None
        self.kineto.cancel()


def _is_column_width(value: object) -> bool:
    # torch cuts a name to three characters less, for the dots.
    return isinstance(value, int) and not isinstance(value, bool) and (value == 0 or value >= 4)
