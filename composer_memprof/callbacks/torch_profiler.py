"""TorchProfiler: where the time goes, operator by operator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import torch
from composer.core import State, Timestamp
from composer.loggers import Logger
from composer.utils import dist

from composer_memprof.artifacts.names import Naming, Stamp, check_run_name, folder_of
from composer_memprof.artifacts.store import Part
from composer_memprof.callbacks.framework import composer_profiler, exclusive
from composer_memprof.callbacks.framework.base import Output, ProfilingCallback, Ranks, Stages, When, check_naming, when
from composer_memprof.recorders import kineto
from composer_memprof.report.html.memory_timeline import write_memory_timeline
from composer_memprof.report.text.files import write_text
from composer_memprof.schedule import ScheduleInput, as_schedule, window

#: Without a Composer Profiler to follow: five batches to settle, then four.
_DEFAULT_SCHEDULE = window('4ba', skip='4ba', warmup='1ba')
_TIMELINE_NEEDS = ('record_shapes', 'profile_memory', 'with_stack')


class TorchProfiler(ProfilingCallback):
    """Records windows with :class:`torch.profiler.profile`, as traces for TensorBoard, Perfetto or chrome://tracing.

    Takes the place of :class:`composer.profiler.TorchProfiler`: the same parameters, with or without a Profiler in
    the Trainer. With one (and Composer's own TorchProfiler switched off) it follows that Profiler's schedule, unless
    it has its own, and hands its traces to that Profiler's trace handlers. Beside each trace lies a summary as text.

    >>> from composer_memprof import TorchProfiler
    >>> callback = TorchProfiler(schedule={'skip': '10ba', 'warmup': '1ba', 'active': '2ba'}, with_modules=True)

    Args:
        folder (str): format string over run variables. Default: ``'{run_name}/torch_traces'``.
        filename (str): format string. Default: ``'rank{rank}.{batch}.pt.trace.json'``.
        remote_file_name (str, optional): format string, with ``s3://`` or the like to that store, otherwise through
            Composer's logger. Leading slashes are stripped. None uploads nothing.
            Default: ``'{run_name}/torch_traces/rank{rank}.{batch}.pt.trace.json'``.
        memory_filename (str, optional): format string of a page with memory over time, ending in ``.html``. Needs
            ``record_shapes``, ``profile_memory`` and ``with_stack``. Default: ``None``, no page.
        memory_remote_file_name (str, optional): as ``remote_file_name``, of that page.
        overwrite (bool): replace files of the same name; otherwise they take ``.2``, … Default: ``False``.
        use_gzip (bool): as ``compress``. Default: ``False``.
        record_shapes (bool): of the inputs of each operator. Default: ``False``.
        profile_memory (bool): allocations, in bytes. Default: ``True``.
        with_stack (bool): the Python stack of each operator. Default: ``False``.
        with_flops (bool): torch's estimate for matrix products and convolutions. Default: ``True``.
        num_traces_to_keep (int): as ``num_artifacts_to_keep``. Default: ``-1``.
        schedule (Schedule | dict | Callable, optional): Default: the Profiler's in the Trainer, where there is one,
            else ``window('4ba', skip='4ba', warmup='1ba')``, one window over batches 5 to 8.
        storage_options (dict, optional): for the store, beside the environment and fsspec's config.
        num_artifacts_to_keep (int): windows kept on this disk, once uploaded; -1 keeps all, 0 none. Default: ``-1``.
        ranks (Sequence[int], optional): which ranks record. Default: all.
        stages (Sequence[str]): of ``train``, ``eval``, ``predict``. Default: ``('train',)``.
        compress (bool): gzip the trace, and append ``.gz`` to both its names. Default: ``False``.
        summary_sort_by (str): key of ``key_averages().table`` that the summary is sorted by.
            Default: ``'cpu_time_total'``.
        summary_row_limit (int): operators in the summary; 0 writes none, -1 all. Default: ``20``.
        close_timeout (float): seconds that the close waits for uploads. Default: ``20``.
        profile_arguments: any further argument of :class:`torch.profiler.profile`, such as ``with_modules``,
            ``activities`` (also as words), ``experimental_config`` (also as a mapping).

    Attributes:
        saved_traces (list[tuple[Timestamp, list[Path]]]): of each window whose files are kept, when it was saved and
            its trace on each rank, the newest last. A path is valid on its rank's node only.

    Raises:
        ValueError: for a parameter that is not allowed, here or when the Trainer is made.
    """

    kind = 'torch_profiler'

    def __init__(
        self,
        folder: str = '{run_name}/torch_traces',
        filename: str = 'rank{rank}.{batch}.pt.trace.json',
        remote_file_name: Optional[str] = '{run_name}/torch_traces/rank{rank}.{batch}.pt.trace.json',
        memory_filename: Optional[str] = None,
        memory_remote_file_name: Optional[
            str
        ] = '{run_name}/torch_memory_traces/rank{rank}.{batch}.pt.trace.memory.html',
        overwrite: bool = False,
        use_gzip: bool = False,
        record_shapes: bool = False,
        profile_memory: bool = True,
        with_stack: bool = False,
        with_flops: bool = True,
        num_traces_to_keep: int = -1,
        schedule: Optional[ScheduleInput] = None,
        storage_options: Optional[Mapping[str, Any]] = None,
        num_artifacts_to_keep: int = -1,
        ranks: Ranks = None,
        stages: Stages = ('train',),
        compress: bool = False,
        summary_sort_by: str = 'cpu_time_total',
        summary_row_limit: int = 20,
        close_timeout: float = 20.0,
        **profile_arguments: Any,
    ) -> None:
        if -1 not in (num_traces_to_keep, num_artifacts_to_keep) and num_traces_to_keep != num_artifacts_to_keep:
            raise ValueError(
                f'num_traces_to_keep={num_traces_to_keep} and num_artifacts_to_keep={num_artifacts_to_keep} differ; '
                'give one of them'
            )
        if summary_sort_by not in kineto.SORT_KEYS:
            raise ValueError(
                f'summary_sort_by={summary_sort_by!r} is unknown; allowed are {", ".join(kineto.SORT_KEYS)}'
            )
        if not isinstance(summary_row_limit, int) or summary_row_limit < -1:
            raise ValueError(
                f'summary_row_limit={summary_row_limit!r} is not allowed; it is -1 (all), 0 (none) or more'
            )
        suffix = '.json' if filename.endswith(('.json', '.json.gz')) else ''
        super().__init__(
            when(schedule, _DEFAULT_SCHEDULE, ranks, stages),
            Output(
                folder=folder,
                naming=Naming(filename, remote_file_name, suffix),
                storage_options=storage_options,
                overwrite=overwrite,
                num_artifacts_to_keep=num_artifacts_to_keep if num_artifacts_to_keep != -1 else num_traces_to_keep,
                compress=compress or use_gzip or filename.endswith('.gz'),
                close_timeout=close_timeout,
            ),
        )
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
        self._summary = (summary_sort_by, summary_row_limit)
        self._follows_composer = schedule is None
        self._step: Any = None
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

    def _check(self, state: State) -> None:
        self.saved_traces = []
        if self._memory_naming is not None:
            check_run_name(state.run_name, self._memory_naming.filename, self._memory_naming.remote)
        served = state.profiler is not None and not composer_profiler.has_composer_torch_profiler(state)
        if self._follows_composer:
            schedule = as_schedule(state.profiler.schedule) if served and state.profiler else _DEFAULT_SCHEDULE
            self.when = When(schedule, self.when.ranks, self.when.stages)
        self._serves_composer = self._follows_composer and served
        self.resources = frozenset({exclusive.KINETO})
        if self._arguments['with_stack']:
            self.resources |= {exclusive.PYTHON_STACKS}
        self.kineto = exclusive.kineto_for(self, state, self._arguments)

    def batch_start(self, state: State, logger: Logger) -> None:
        super().batch_start(state, logger)
        if self._recording is not None:
            logger.log_traces({'profiler/state': 'RECORD'})

    def _prepare(self, state: State) -> None:
        del state  # unused
        assert self.kineto is not None
        self.kineto.prepare()

    def _start(self, state: State, stamp: Stamp) -> None:
        del state, stamp  # unused
        assert self.kineto is not None
        self.kineto.start(self, {'global_rank': json.dumps(dist.get_global_rank())})

    def _batch_begins(self, state: State) -> None:
        # The name by which TensorBoard's plugin tells steps.
        self._step = torch.profiler.record_function(f'ProfilerStep#{state.timestamp.batch.value}')
        self._step.__enter__()

    def _batch_ended(self, state: State) -> None:
        del state  # unused
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def _stop(self, state: State, stamp: Stamp) -> None:
        self._batch_ended(state)
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
        sort_by, rows = self._summary
        if rows:
            text = Part(
                f'{self.kind}.summary',
                '.summary.txt',
                lambda path: write_text(kineto.summarize(result, sort_by, rows), path),
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
        self.store.save(
            parts,
            stamp,
            here=self._serves_composer,  # its trace handlers read the file before this event is over
            then=lambda paths: self._saved(state, stamp, paths),
        )

    def _saved(self, state: State, stamp: Stamp, paths: dict[str, Path]) -> None:
        trace = paths.get(self.kind)
        if trace is None:
            return
        self.saved_traces.append((stamp.timestamp, self._paths_of_all_ranks(stamp, trace)))
        if self._serves_composer and state.profiler is not None:
            state.profiler.record_chrome_json_trace_file(trace)

    def _paths_of_all_ranks(self, stamp: Stamp, trace: Path) -> list[Path]:
        """This rank's path as it is, the others' as they are named."""
        own = dist.get_global_rank()
        return [trace if rank == own else self._path_of(stamp, rank) for rank in range(dist.get_world_size())]

    def _path_of(self, stamp: Stamp, rank: int) -> Path:
        suffix = f'{self.output.naming.suffix}.gz' if self.output.compress else self.output.naming.suffix
        name = self.output.naming.local(replace(stamp, rank=rank), suffix, 1)
        return folder_of(self.output.folder, stamp.run_name, rank).absolute() / name

    def _on_removed(self, paths: list[Path]) -> None:
        own = dist.get_global_rank()
        gone = {str(path) for path in paths}
        self.saved_traces = [trace for trace in self.saved_traces if str(trace[1][own]) not in gone]

    def _cancel(self) -> None:
        self._step = None
        assert self.kineto is not None
        self.kineto.cancel()
