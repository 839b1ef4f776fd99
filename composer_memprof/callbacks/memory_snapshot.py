"""MemorySnapshot: what filled the memory, allocation by allocation."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional, Union

import torch
from composer.core import State, Time
from composer.loggers import Logger
from composer.utils import dist

from composer_memprof.analysis.memory.summary import write_summary
from composer_memprof.analysis.snapshot.loading import read_snapshot
from composer_memprof.artifacts.child import ReadAtFork
from composer_memprof.artifacts.names import Naming, Stamp
from composer_memprof.artifacts.store import Part
from composer_memprof.callbacks.framework import exclusive
from composer_memprof.callbacks.framework.base import Output, Ranks, Stages, when
from composer_memprof.callbacks.framework.phases import PhasedCallback
from composer_memprof.callbacks.parts.snapshot_recording import Make, SnapshotRecording
from composer_memprof.messages import warn
from composer_memprof.recorders.allocations import cpu_allocations
from composer_memprof.recorders.allocations.allocator_history import AllocatorHistory, Context, Stacks
from composer_memprof.recorders.allocations.notes import Failure, OutOfMemory
from composer_memprof.recorders.allocations.out_of_memory import (
    add_observer,
    describe_error,
    is_out_of_memory,
    parse_out_of_memory,
    pending_error,
    remove_observer,
)
from composer_memprof.recorders.allocations.snapshot_pickle import write_pickle
from composer_memprof.recorders.kineto import KinetoRecorder
from composer_memprof.report.html.snapshot.page import write_snapshot_page
from composer_memprof.schedule import ScheduleInput, window
from composer_memprof.signals import uninterrupted

#: Out of memory may come again and again, where the training tries smaller microbatches.
_MOST_OOMS = 3
#: On a CPU, how long it stands by before it lets go of what it has, in seconds; a batch at least.
_STAND_BY_S = 0.5


class MemorySnapshot(PhasedCallback):
    """Records every allocation of a window, with its stack, as a snapshot that torch's viewer reads.

    Takes the place of :class:`composer.callbacks.MemorySnapshot`: the same parameters, in any number of windows. On
    a GPU it records the allocator's history; on a CPU the profiler's allocation events, in the same form, without
    what was allocated before the window. Each window leaves
    ``.pickle``, a page ``.html`` and ``.summary.json``.

    >>> from composer_memprof import MemorySnapshot
    >>> callback = MemorySnapshot(schedule={'skip': '10ba', 'active': '2ba', 'every': '1000ba'})

    Args:
        skip_batches (int): batches before the window, counted from where the run starts. Default: ``1``.
        interval (int | str | Time): length of the window. Default: ``'3ba'``.
        max_entries (int): events to keep on a GPU; beyond it the oldest are dropped. Default: ``100000``.
        folder (str): format string over run variables. Default: ``'{run_name}/torch_traces'``.
        filename (str): format string, a prefix. Default: ``'rank{rank}.{batch}.memory_snapshot'``.
        remote_file_name (str, optional): format string, with ``s3://`` or the like to that store, otherwise through
            Composer's logger. A folder without ``{batch}``, else a prefix. None uploads nothing.
            Default: ``'{run_name}/torch_memory_traces'``.
        overwrite (bool): replace files of the same name; otherwise they take ``.2``, … Default: ``False``.
        schedule (Schedule | dict | Callable, optional): in place of ``skip_batches`` and ``interval``. Default:
            ``window(interval, skip=skip_batches)``, one window over batches 1 to 3.
        storage_options (dict, optional): for the store, beside the environment and fsspec's config.
        num_artifacts_to_keep (int): windows kept on this disk, once uploaded; -1 keeps all. Default: ``-1``.
        ranks (Sequence[int], optional): which ranks record. Default: all.
        stages (Sequence[str]): of ``train``, ``eval``, ``predict``. Default: ``('train',)``.
        compress (bool): gzip the pickle. Default: ``False``.
        stacks (str): on a GPU, ``'python'``, or ``'all'`` with C++ frames, which is slow to take. Default: ``'python'``.
        context (str): on a GPU, which events carry stacks: ``'all'``, ``'alloc'``, ``'state'``. Default: ``'all'``.
        close_timeout (float): seconds that the close waits for uploads. Default: ``20``.
        on_oom (bool): record outside of windows too, and save what there is when memory runs out, as ``….oom.pickle``;
            on a GPU before anything is freed. Takes the place of :class:`composer.callbacks.OOMObserver`. On a CPU
            each batch is recorded for it by torch's profiler, with stacks, which slows training down. Default: ``False``.
        on_exception (bool): likewise, for any exception or signal that ends ``fit``, as ``….exception.pickle``. An
            open window is saved in any case. Default: ``False``.

    Raises:
        ValueError: for a parameter that is not allowed, here or when the Trainer is made.
    """

    kind = 'memory_snapshot'

    def __init__(
        self,
        skip_batches: int = 1,
        interval: Union[int, str, Time] = '3ba',
        max_entries: int = 100000,
        folder: str = '{run_name}/torch_traces',
        filename: str = 'rank{rank}.{batch}.memory_snapshot',
        remote_file_name: Optional[str] = '{run_name}/torch_memory_traces',
        overwrite: bool = False,
        schedule: Optional[ScheduleInput] = None,
        storage_options: Optional[Mapping[str, Any]] = None,
        num_artifacts_to_keep: int = -1,
        ranks: Ranks = None,
        stages: Stages = ('train',),
        compress: bool = False,
        stacks: Stacks = 'python',
        context: Context = 'all',
        close_timeout: float = 20.0,
        on_oom: bool = False,
        on_exception: bool = False,
    ) -> None:
        given = {'skip_batches': (skip_batches, 1), 'interval': (interval, '3ba')}
        told = [f'{name}={value!r}' for name, (value, default) in given.items() if str(value) != str(default)]
        if schedule is not None and told:
            raise ValueError(f'schedule and {", ".join(told)} both say when; give one of them')
        for name, value, allowed in (
            ('stacks', stacks, ('python', 'all')),
            ('context', context, ('all', 'alloc', 'state')),
        ):
            if value not in allowed:
                raise ValueError(f'{name}={value!r} is unknown; allowed are {", ".join(allowed)}')
        for name, switch in (('on_oom', on_oom), ('on_exception', on_exception)):
            if not isinstance(switch, bool):
                raise ValueError(f'{name}={switch!r} is not allowed; it is true or false')
        if not isinstance(max_entries, int) or max_entries < 1:
            raise ValueError(f'max_entries={max_entries!r} is not allowed; it must be a whole number above 0')
        default = _window(skip_batches, interval)
        super().__init__(
            when(schedule, default, ranks, stages),
            Output(
                folder=folder,
                naming=Naming(filename, remote_file_name, '.pickle'),
                storage_options=storage_options,
                overwrite=overwrite,
                num_artifacts_to_keep=num_artifacts_to_keep,
                compress=compress,
                close_timeout=close_timeout,
            ),
        )
        self._on_oom = on_oom
        self._on_exception = on_exception
        self._history_arguments = (max_entries, stacks, context)
        self._ooms = 0
        self._stood_by = 0.0
        self._may_stand_by = False
        #: What ended the fit, where it did not come to its end.
        self._of_broken_fit: Optional[Failure] = None

    def _check(self, state: State) -> None:
        self._ooms, self._of_broken_fit = 0, None
        self.kineto = None
        arguments = cpu_allocations.PROFILE_ARGUMENTS
        if state.device.name == 'gpu' and torch.cuda.is_available():
            self.resources = frozenset({exclusive.ALLOCATOR_HISTORY})
            self._window = SnapshotRecording(AllocatorHistory(*self._history_arguments), follows_modules=True)
            self._stand_by = SnapshotRecording(AllocatorHistory(*self._history_arguments), follows_modules=False)
        else:
            self.resources = frozenset({exclusive.KINETO, exclusive.PYTHON_STACKS})
            self.kineto = exclusive.kineto_for(self, state, arguments)
            self._window = SnapshotRecording(self.kineto, follows_modules=True)
            self._stand_by = SnapshotRecording(KinetoRecorder(**arguments), follows_modules=False)
        self._refuse_second_stand_by(state)
        self._may_stand_by = self.stands_by

    @property
    def stands_by(self) -> bool:
        """Whether it records outside of windows too, on this rank."""
        return (self._on_oom or self._on_exception) and self.may_run_on(dist.get_global_rank())

    def _refuse_second_stand_by(self, state: State) -> None:
        for other in state.callbacks[: state.callbacks.index(self)] if self in state.callbacks else ():
            if self.stands_by and isinstance(other, MemorySnapshot) and other.stands_by:
                raise ValueError(
                    f'on_oom={self._on_oom}, on_exception={self._on_exception}: another MemorySnapshot of this Trainer '
                    'has one of them set too; set both on one of the two'
                )

    # -- windows ------------------------------------------------------------------------------------------------

    def _prepare(self, state: State) -> None:
        del state  # unused
        if self.kineto is not None:
            self.kineto.prepare()

    def _start(self, state: State, stamp: Stamp) -> None:
        del stamp  # unused
        self._window.begin(state)

    def _stop(self, state: State, stamp: Stamp) -> None:
        self._end(self._window, state, stamp)

    def _cancel(self) -> None:
        self._window.cancel()

    def _phase_begins(self, phase: str, state: State) -> None:
        recording = self._window if self._window.active else self._stand_by
        if recording.active:
            recording.mark(phase, state)

    def _end(self, recording: SnapshotRecording, state: State, stamp: Stamp, failure: str = '') -> None:
        try:
            self._save(recording.end(state, self._of_broken_fit), stamp, failure)
        finally:
            recording.release()

    def _save(self, make: Make, stamp: Stamp, failure: str = '') -> None:
        """Write the snapshot's files. ``failure``: what it was taken for, of which a word is said."""
        take = functools.cache(make)
        read = functools.cache(lambda: read_snapshot(take()))
        title = f'{stamp.run_name}, rank {dist.get_global_rank()}, batch {stamp.timestamp.batch.value}'
        self.store.save(
            [
                Part(self.kind, '.pickle', lambda path: write_pickle(take(), path), self.output.compress),
                Part(f'{self.kind}.page', '.html', lambda path: write_snapshot_page(read(), path, title)),
                Part(f'{self.kind}.summary', '.summary.json', lambda path: write_summary(read(), path)),
            ],
            stamp,
            then=functools.partial(self._tell, failure, stamp) if failure else None,
            # To put the allocator's history into Python takes long, and the training would wait for it.
            read_at_fork=ReadAtFork(take, AllocatorHistory.settle) if self.kineto is None else None,
        )

    def _tell(self, failure: str, stamp: Stamp, paths: Mapping[str, Path]) -> None:
        """Where to look, for whoever reads the end of a log."""
        if self.kind in paths:
            page = f'; or open {paths[f"{self.kind}.page"]}' if f'{self.kind}.page' in paths else ''
            warn(f'{failure} in batch {stamp.timestamp.batch.value}: composer-memprof inspect {paths[self.kind]}{page}')

    # -- standing by: recording outside of windows, for the case that the training breaks off --------------------

    def fit_start(self, state: State, logger: Logger) -> None:
        super().fit_start(state, logger)
        self._of_broken_fit = None
        if self._on_oom and self.kineto is None:
            add_observer(self._out_of_memory)

    def _before_batch(self, stage: str, state: State) -> None:
        if not self._may_stand_by:
            super()._before_batch(stage, state)
            return
        with uninterrupted():
            self._swap_stand_by(stage, state)

    def _swap_stand_by(self, stage: str, state: State) -> None:
        """A profiler's session grows without bound: it is begun anew, between two batches."""
        if self.kineto is not None and self._stand_by.active and time.monotonic() - self._stood_by > _STAND_BY_S:
            self.stand_down()
        super()._before_batch(stage, state)
        if (
            self._fitting
            and not (self._stand_by.active or self._stepped_aside)
            and exclusive.claim_idle(self, self._stand_by, state)
        ):
            self._stood_by = time.monotonic()
            self._stand_by.begin(state)

    def _after_batch(self, stage: str, state: State) -> None:
        super()._after_batch(stage, state)
        if self._stand_by.active and self._must_yield(state):
            self.stand_down()

    def stand_down(self) -> bool:
        if not self._stand_by.active:
            return False
        try:
            self._stand_by.cancel()
        finally:
            exclusive.release(self._stand_by)
        return True

    def fit_end(self, state: State, logger: Logger) -> None:
        self.stand_down()
        remove_observer(self._out_of_memory)
        super().fit_end(state, logger)

    def _broke_off(self, state: State) -> None:
        remove_observer(self._out_of_memory)
        error = pending_error()  # no longer than here: its frames hold what the failed batch held
        oom = is_out_of_memory(error)
        shortage = parse_out_of_memory(error) if error is not None and oom else None
        self._of_broken_fit = Failure(describe_error(error), shortage)
        wanted = not self._ooms if oom else self._on_exception  # the first snapshot of running out tells most
        if not self._stand_by.active or not wanted:
            self.stand_down()  # an open window is saved as it is
            return
        stamp = replace(self._stamp('train', state), mark='.oom' if oom else '.exception')
        try:
            with uninterrupted():
                failure = 'out of memory' if oom else 'the training broke off'
                self._end(self._stand_by, state, stamp, failure)
        finally:
            exclusive.release(self._stand_by)

    def _out_of_memory(self, device: int, requested: int, total: int, free: int) -> None:
        """On the thread whose allocation fails, while all that filled the memory is still there."""
        state = self._state() if self._state is not None else None
        recording = self._stand_by if self._stand_by.active else self._window
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
                stamp = replace(self._stamp('train', state), mark='.oom')
                self._save(recording.take(state, Failure(oom=oom)), stamp, 'out of memory')
        except Exception as error:  # it would take the place of the out-of-memory error
            self._step_aside(error)


def _window(skip_batches: int, interval: Union[int, str, Time]) -> Any:
    try:
        return window(interval, skip=skip_batches)
    except ValueError as error:
        message = str(error).replace('active=', 'interval=').replace('skip=', 'skip_batches=')
        raise ValueError(message) from error
