"""MemorySnapshot: what filled the memory, allocation by allocation."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Optional, Union

import torch
from composer.core import State, Time
from composer.loggers import Logger
from composer.utils import dist
from typing_extensions import Unpack

from composer_memprof.analysis.memory.summary import SnapshotSummary, read_summary, write_summary
from composer_memprof.analysis.snapshot.loading import read_snapshot
from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.artifacts.store import Part
from composer_memprof.artifacts.writing.child.work import ReadAtFork
from composer_memprof.callbacks.framework.closing.broken_fit import watch_fit
from composer_memprof.callbacks.framework.life import DISABLED
from composer_memprof.callbacks.framework.options import COMPRESS, SharedParameters, takes_shared_parameters
from composer_memprof.callbacks.framework.phases import BETWEEN, StagePhasedCallback
from composer_memprof.callbacks.framework.rank_sample import FilesOnRanks, parse_files_on_ranks
from composer_memprof.callbacks.framework.windows import exclusive
from composer_memprof.callbacks.memory_snapshot.growth import growth_part
from composer_memprof.callbacks.memory_snapshot.recording import CPU_NEEDS, GPU_NEEDS, Make, SnapshotRecording
from composer_memprof.messages import check_one_of, check_switches, must_be, warn
from composer_memprof.recorders.allocations import cpu_allocations, out_of_memory
from composer_memprof.recorders.allocations.allocator_history import AllocatorHistory, Context, Stacks
from composer_memprof.recorders.allocations.between_windows import BetweenWindows
from composer_memprof.recorders.allocations.notes import Failure, OutOfMemory
from composer_memprof.recorders.allocations.snapshot_pickle import write_pickle
from composer_memprof.recorders.kineto import KinetoRecorder
from composer_memprof.report.html.snapshot.page import page_title, write_snapshot_page
from composer_memprof.schedule import Schedule, window
from composer_memprof.signals import holds_signals, uninterrupted

#: How many out-of-memory errors of a run are saved: training may retry with smaller microbatches again and again.
_MOST_OOMS = 3
#: On a CPU, seconds after which the standby recording starts anew, at the next batch: a profiler's session grows.
_STANDBY_S = 0.5

#: What a failure is called in messages.
OUT_OF_MEMORY = 'out of memory'


@takes_shared_parameters(
    folder='{run_name}/torch_traces',
    filename='rank{rank}.{batch}.memory_snapshot',
    remote_file_name='{run_name}/torch_memory_traces',
    docs={
        'filename': "format string, a prefix. Default: ``'rank{rank}.{batch}.memory_snapshot'``.",
        'schedule': 'in place of ``skip_batches`` and ``interval``. Default: ``window(interval, skip=skip_batches)``, '
        'one window over batches 1 to 3.',
        'compress': f'the pickle: {COMPRESS}. Default: ``False``.',
    },
    order=(
        # Composer's parameters, in its order
        *('skip_batches', 'interval', 'max_entries', 'folder', 'filename', 'remote_file_name', 'overwrite'),
        *('schedule', 'storage_options', 'num_artifacts_to_keep', 'ranks', 'stages', 'compress'),
        *('stacks', 'context', 'close_timeout', 'on_oom', 'on_exception', 'page', 'files_on_ranks', 'on_full', 'probe'),
    ),
)
class MemorySnapshot(StagePhasedCallback):
    """Records every allocation of a window, with its stack, as a snapshot that torch's viewer reads.

    Replaces :class:`composer.callbacks.MemorySnapshot`: the same parameters, with any number of windows. On a GPU it
    records the allocator's history. On a CPU it records the profiler's allocation events, in the same format; of memory
    allocated before the window it has parameters, buffers, gradients, optimizer state, the batch and the last outputs,
    and beside it the resident memory of the process. Each window writes ``.pickle``, a page ``.html`` and
    ``.summary.json``. If memory grows between windows, ``.growing.json`` names the container that grows.

    Once they are written, each rank logs the window's peak as ``memory/…``: ``allocated_peak_bytes``, on a GPU
    ``reserved_peak_bytes``, on a CPU ``rss_peak_bytes``, and ``peak_batch``, the batch in which it was.

    >>> from composer_memprof import MemorySnapshot
    >>> callback = MemorySnapshot(schedule={'skip': '10ba', 'active': '2ba', 'every': '1000ba'})

    Args:
        skip_batches (int): batches before the window, counted from where the run starts. Default: ``1``.
        interval (int | str | Time): length of the window. Default: ``'3ba'``.
        max_entries (int): events to keep; beyond it the oldest are dropped. Default: ``100000``.
        stacks (str): on a GPU, ``'python'``, or ``'all'`` for C++ frames too, which is slow. Default: ``'python'``.
        context (str): on a GPU, which events have stacks: ``'all'``, ``'alloc'``, ``'state'``. Default: ``'all'``.
        on_oom (bool): record outside of windows too, and save a snapshot when memory runs out, as ``….oom.pickle``; on
            a GPU before anything is freed. Replaces :class:`composer.callbacks.OOMObserver`. On a CPU torch's profiler
            then records every batch with stacks, which slows training down. Default: ``False``.
        on_exception (bool): the same for any exception or signal that ends ``fit``, as ``….exception.pickle``. An
            open window is saved in any case. Default: ``False``.
        page (bool): write the page. ``composer-memprof inspect --html`` makes it later. Default: ``True``.
        files_on_ranks (int | Sequence[int] | dict, optional): the ranks that write the pickle and the page; the others
            write the summary alone. A snapshot that is taken because memory
            runs out, or by ``on_exception``, is whole on any rank. ``[0, -1]`` is the first and the last, ``{'every': 64}`` each 64th,
            ``{'ranks': [0, -1], 'every': 64}`` both. Default: all.
        <shared parameters>

    Raises:
        ValueError: for a parameter that is not allowed, here or when the Trainer is made.
    """

    kind = 'memory_snapshot'
    torch_needs = {'GPU': GPU_NEEDS, 'CPU': CPU_NEEDS}

    suffix = '.pickle'

    def __init__(
        self,
        skip_batches: int = 1,
        interval: Union[int, str, Time] = '3ba',
        max_entries: int = 100000,
        stacks: Stacks = 'python',
        context: Context = 'all',
        on_oom: bool = False,
        on_exception: bool = False,
        page: bool = True,
        files_on_ranks: FilesOnRanks = None,
        **shared: Unpack[SharedParameters],
    ) -> None:
        given = {'skip_batches': (skip_batches, 1), 'interval': (interval, '3ba')}
        changed = [f'{name}={value!r}' for name, (value, default) in given.items() if str(value) != str(default)]
        if shared['schedule'] is not None and changed:
            raise ValueError(f'schedule and {", ".join(changed)} both say when to record; give one of them')
        check_one_of('stacks', stacks, ('python', 'all'))
        check_one_of('context', context, ('all', 'alloc', 'state'))
        check_switches(on_oom=on_oom, on_exception=on_exception, page=page)
        if not isinstance(max_entries, int) or max_entries < 1:
            raise must_be('max_entries', 'a whole number from 1', max_entries)
        default_schedule = _window(skip_batches, interval)
        super().__init__(suffix=self.suffix, default_schedule=default_schedule, **shared)
        self._on_oom = on_oom
        self._on_exception = on_exception
        self._page = page
        self._file_ranks = parse_files_on_ranks(files_on_ranks)
        self._writes_files = True
        self._max_entries = max_entries
        self._history_arguments = (max_entries, stacks, context)
        self._ooms = 0
        self._standby_since = 0.0
        #: Ends the watch for an exception that ends ``fit``.
        self._end_watch: Callable[[], None] = lambda: None
        #: What ended the last fit, if it failed.
        self._failure: Optional[Failure] = None

    def _forget_run(self) -> None:
        super()._forget_run()
        #: Whether it records outside of windows too, on this rank. Decided at INIT.
        self.uses_standby = False
        self.kineto, self.resources = None, frozenset()
        self._between: Optional[BetweenWindows] = None

    def init(self, state: State, logger: Logger) -> None:
        self._end_watch()
        super().init(state, logger)
        if self.uses_standby:
            self._end_watch = watch_fit(state, self.end_abandoned_recording)

    def close(self, state: State, logger: Logger) -> None:
        super().close(state, logger)
        if self._between is not None:
            self._between.close()
        self._end_watch()

    def _torch_needs(self, state: State) -> tuple[ModuleType, ...]:
        if self._uses_allocator_history(state):
            return self.torch_needs['GPU']
        return self.torch_needs['CPU']

    def _uses_allocator_history(self, state: State) -> bool:
        return state.device.name == 'gpu' and torch.cuda.is_available()

    def _check(self, state: State) -> None:
        self._ooms, self._failure = 0, None
        self._writes_files = self._file_ranks.has_this_rank()
        self.kineto = None
        arguments = cpu_allocations.PROFILE_ARGUMENTS
        if self._uses_allocator_history(state):
            self.resources = frozenset({exclusive.ALLOCATOR_HISTORY})
            self._window, self._standby = (
                SnapshotRecording(AllocatorHistory(*self._history_arguments), follows_modules, self._max_entries)
                for follows_modules in (True, False)
            )
        else:
            self.resources = frozenset({exclusive.KINETO, exclusive.PYTHON_STACKS})
            self.kineto = exclusive.kineto_for(self, self.earlier_callbacks(state), arguments)
            self._window = SnapshotRecording(self.kineto, True, self._max_entries)
            self._standby = SnapshotRecording(KinetoRecorder(**arguments), False, self._max_entries)
        self.uses_standby = (self._on_oom or self._on_exception) and self.may_run_on(dist.get_global_rank())
        self._refuse_second_standby(state)

    def _refuse_second_standby(self, state: State) -> None:
        for other in self.earlier_callbacks(state):
            if self.uses_standby and isinstance(other, MemorySnapshot) and other.uses_standby:
                raise ValueError(
                    f'on_oom={self._on_oom}, on_exception={self._on_exception}: another MemorySnapshot of this Trainer '
                    'has one of them too; set both on one callback'
                )

    # -- windows ------------------------------------------------------------------------------------------------

    def _prepare(self, state: State) -> None:
        del state  # unused
        if self.kineto is not None:
            self.kineto.prepare()

    def _start(self, state: State, stamp: Stamp) -> None:
        del stamp  # unused
        self._window.begin(state, BETWEEN[self._stage], self._batch(state))

    def _stop(self, state: State, stamp: Stamp) -> None:
        self._end(self._window, state, stamp)

    def _cancel(self) -> None:
        self._window.cancel()

    @property
    def has_recorder(self) -> bool:
        return self._window.active or self._standby.active

    def _phase_begins(self, phase: str, state: State) -> None:
        if self._window.active:
            self._window.mark(phase, state, self._batch(state))
        elif self._standby.active:
            self._standby.mark(phase, state, state.timestamp.batch.value)

    def batch_end(self, state: State, logger: Logger) -> None:
        super().batch_end(state, logger)
        self._phase_begins(BETWEEN['train'], state)  # what other callbacks allocate now is not the optimizer's
        if self._between is not None and not self._window.active:
            self._save_growth(state, self._between.end_batch(state.timestamp.batch.value))

    def _save_growth(self, state: State, search: Optional[Callable[[], dict[str, Any]]]) -> None:
        """Let a child look for what grows between the windows, if a search is due."""
        if search is not None:
            stamp = self._windows.stamp('train', state)
            self.store.save([growth_part(self.kind, stamp, search)], stamp)

    def _batch(self, state: State) -> int:
        """The batch of the window's stage: during an evaluation or prediction the training's stands still."""
        return state.timestamp.batch.value if self._stage == 'train' else self._windows.count(self._stage)

    def _end(self, recording: SnapshotRecording, state: State, stamp: Stamp, failure: str = '') -> None:
        try:
            self._save(recording.end(state, self._failure), stamp, failure)
        finally:
            recording.release()

    def _save(self, make: Make, stamp: Stamp, failure: str = '') -> None:
        """Write the snapshot's files. ``failure``: why it was taken; a warning then names the files."""
        take = functools.cache(make)
        read = functools.cache(lambda: read_snapshot(take()))
        group = self._metric_group('memory', self._stage)
        title = page_title(stamp.run_name, dist.get_global_rank(), stamp.timestamp.batch.value)
        ran_out = self._failure is not None and self._failure.oom is not None
        parts = []
        if self._writes_files or failure or ran_out:
            parts.append(Part(self.kind, '.pickle', lambda path: write_pickle(take(), path), self.output.compress))
            if self._page:
                parts.append(Part(f'{self.kind}.page', '.html', lambda path: write_snapshot_page(read(), path, title)))
        parts.append(Part(f'{self.kind}.summary', '.summary.json', lambda path: write_summary(read(), path)))
        self.store.save(
            parts,
            stamp,
            on_saved=functools.partial(self._saved, stamp, failure, group),
            # Converting the allocator's history to Python objects takes long; training would wait for it here.
            read_at_fork=ReadAtFork(take, AllocatorHistory.settle) if self.kineto is None else None,
        )

    def _saved(self, stamp: Stamp, failure: str, group: str, paths: Mapping[str, Path]) -> None:
        if failure and self.kind in paths:
            self._announce(failure, stamp, paths)
        summary = paths.get(f'{self.kind}.summary')
        if summary is not None:
            metrics = _metrics_of(read_summary(summary))
            self._window_metrics.add({f'{group}/{name}': value for name, value in metrics.items()})

    def _announce(self, failure: str, stamp: Stamp, paths: Mapping[str, Path]) -> None:
        """Name the files at the end of the log."""
        page = f'; or open {paths[f"{self.kind}.page"]}' if f'{self.kind}.page' in paths else ''
        guide = '. What to do: composer-memprof guide index' if failure == OUT_OF_MEMORY else ''
        what = f'{failure} in batch {stamp.timestamp.batch.value}'
        warn(f'{what}: composer-memprof inspect {paths[self.kind]}{page}{guide}')

    # -- standby: recording outside of windows, in case the training fails --------------------------------------------

    def fit_start(self, state: State, logger: Logger) -> None:
        super().fit_start(state, logger)
        self._failure = None
        if self._between is None and 'train' in self._windows and self.may_run_on(dist.get_global_rank()):
            self._between = BetweenWindows(torch.cuda.current_device() if self._uses_allocator_history(state) else None)
        if self._on_oom and self.kineto is None:
            out_of_memory.add_observer(self._out_of_memory)

    def _before_batch(self, stage: str, state: State) -> None:
        if not self.uses_standby:
            super()._before_batch(stage, state)
            return
        # A profiler's session grows without bound, so a new one replaces it between two batches.
        if self.kineto is not None and self._standby.active and time.monotonic() - self._standby_since > _STANDBY_S:
            self.yield_resources()
        super()._before_batch(stage, state)
        self._stand_by(state)

    def _stand_by(self, state: State) -> None:
        wanted = self._fitting and not self._standby.active and self._life is not DISABLED
        if wanted and exclusive.claim_if_free(self, self._standby, state):
            self._standby_since = time.monotonic()
            self._standby.begin(state, BETWEEN['train'], state.timestamp.batch.value)

    def _after_batch(self, stage: str, state: State) -> None:
        super()._after_batch(stage, state)
        if self._standby.active and self._must_yield(state):
            self.yield_resources()
        elif self.uses_standby and self.kineto is None:
            self._stand_by(state)  # an evaluation or a checkpoint may come before the next batch

    def yield_resources(self) -> bool:
        if not self.uses_standby or not self._standby.active:
            return False
        try:
            self._standby.cancel()
        finally:
            exclusive.release(self, self._standby)
        return True

    def fit_end(self, state: State, logger: Logger) -> None:
        if self._between is not None:
            self._save_growth(state, self._between.last_search())
        self.yield_resources()
        out_of_memory.remove_observer(self._out_of_memory)
        super().fit_end(state, logger)

    def _fit_failed(self, state: State) -> None:
        out_of_memory.remove_observer(self._out_of_memory)
        error = out_of_memory.pending_error()  # not kept: its frames hold the tensors of the failed batch
        oom = out_of_memory.out_of_memory_in(error)
        shortage = None if oom is None else out_of_memory.parse_out_of_memory(oom)
        self._failure = Failure(out_of_memory.describe_error(error), shortage)
        # The first out-of-memory snapshot tells most.
        wanted = self._on_exception if oom is None else not self._ooms
        if not self._standby.active or not wanted:
            self.yield_resources()  # an open window is saved as it is
            return
        stamp = replace(self._windows.stamp('train', state), mark='.exception' if oom is None else '.oom')
        try:
            with uninterrupted():
                failure = 'training failed' if oom is None else OUT_OF_MEMORY
                self._end(self._standby, state, stamp, failure)
        finally:
            exclusive.release(self, self._standby)

    @holds_signals
    def _out_of_memory(self, device: int, requested: int, total: int, free: int) -> None:
        """Runs on the thread whose allocation fails, before anything is freed."""
        state = self._state() if self._state is not None else None
        recording = self._standby if self._standby.active else self._window
        if state is None or self._ooms >= _MOST_OOMS or not recording.active:
            return
        self._ooms += 1
        try:
            oom = OutOfMemory(
                device=device,
                requested=requested,
                allocated=torch.cuda.memory_allocated(device),
                reserved=torch.cuda.memory_reserved(device),
                free=free,
                total=total,
            )
            with uninterrupted():
                stamp = replace(self._windows.stamp('train', state), mark='.oom')
                self._save(recording.take(state, Failure(oom=oom)), stamp, OUT_OF_MEMORY)
        except Exception as error:  # it would replace the out-of-memory error
            self._disable(error)


def _metrics_of(summary: SnapshotSummary) -> dict[str, int]:
    """The peak of the device that held most."""
    device = summary.largest_device
    if device is None:
        return {}
    metrics = {
        'allocated_peak_bytes': device.peak.bytes,
        'peak_batch': device.peak.batch,
        'reserved_peak_bytes': device.reserved_peak,
        'rss_peak_bytes': device.rss_peak,
    }
    return {name: value for name, value in metrics.items() if value is not None}


def _window(skip_batches: int, interval: Union[int, str, Time]) -> Schedule:
    try:
        return window(interval, skip=skip_batches)
    except ValueError as error:
        message = re.sub(r'^active\b', 'interval', re.sub(r'^skip\b', 'skip_batches', str(error)))
        raise ValueError(message) from error
