"""MemorySnapshot: what filled the memory, allocation by allocation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Optional, Union

import torch
from composer.core import State, Time

from composer_memprof.artifacts.names import Naming, Stamp
from composer_memprof.artifacts.store import Part
from composer_memprof.callbacks import sessions
from composer_memprof.callbacks.base import Output, ProfilingCallback, Ranks, Stages, when
from composer_memprof.recorders import cpu_allocations
from composer_memprof.recorders.allocator_history import AllocatorHistory, Context, Stacks
from composer_memprof.recorders.snapshots import has_events, write_pickle, write_trace_plot
from composer_memprof.schedule import ScheduleInput, window

_DEFAULT_WINDOW = (1, '3ba')


class MemorySnapshot(ProfilingCallback):
    """Records every allocation of a window, with its stack, as a snapshot that torch's viewer reads.

    Takes the place of :class:`composer.callbacks.MemorySnapshot`: the same parameters, in any number of windows. On
    a GPU it records the allocator's history; on a CPU the profiler's allocation events, in the same form, without
    what was allocated before the window. Each window leaves ``.pickle`` and ``.html``.

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
    ) -> None:
        given = [
            f'{name}={value!r}'
            for (name, value), default in zip(
                {'skip_batches': skip_batches, 'interval': interval}.items(), _DEFAULT_WINDOW
            )
            if value != default
        ]
        if schedule is not None and given:
            raise ValueError(f'schedule and {", ".join(given)} both say when; give one of them')
        for name, value, allowed in (
            ('stacks', stacks, ('python', 'all')),
            ('context', context, ('all', 'alloc', 'state')),
        ):
            if value not in allowed:
                raise ValueError(f'{name}={value!r} is unknown; allowed are {", ".join(allowed)}')
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
        self._history = AllocatorHistory(max_entries, stacks, context)

    def _check(self, state: State) -> None:
        self.kineto = None
        self.resources = frozenset()
        if state.device.name == 'gpu' and torch.cuda.is_available():
            self.resources = frozenset({sessions.ALLOCATOR_HISTORY})
            return
        self.resources = frozenset({sessions.KINETO, sessions.PYTHON_STACKS})
        self.kineto = sessions.kineto_for(self, state, cpu_allocations.PROFILE_ARGUMENTS)

    def _prepare(self, state: State) -> None:
        del state  # unused
        if self.kineto is not None:
            self.kineto.prepare()

    def _start(self, state: State, stamp: Stamp) -> None:
        del state, stamp  # unused
        if self.kineto is not None:
            self.kineto.start(self)
        else:
            self._history.start()

    def _stop(self, state: State, stamp: Stamp) -> None:
        del state  # unused
        if self.kineto is not None:
            result = self.kineto.stop(self)
            take = functools.cache(lambda: cpu_allocations.snapshot_of(result))
        else:
            snapshot = self._history.stop()
            take = functools.cache(lambda: snapshot)
        self.store.save(
            [
                Part(self.kind, '.pickle', lambda path: write_pickle(take(), path), self.output.compress),
                Part(f'{self.kind}.page', '.html', lambda path: _write_page(take, path)),
            ],
            stamp,
        )

    def _cancel(self) -> None:
        if self.kineto is not None:
            self.kineto.cancel()
        else:
            self._history.cancel()


def _write_page(take: Callable[[], dict[str, Any]], path: Any) -> None:
    snapshot = take()
    if not has_events(snapshot):
        raise ValueError('no allocation was recorded, so there is nothing to draw')
    write_trace_plot(snapshot, path)


def _window(skip_batches: int, interval: Union[int, str, Time]) -> Any:
    try:
        return window(interval, skip=skip_batches)
    except ValueError as error:
        message = str(error).replace('active=', 'interval=').replace('skip=', 'skip_batches=')
        raise ValueError(message) from error
