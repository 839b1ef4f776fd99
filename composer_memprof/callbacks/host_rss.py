"""HostRSS: host memory over time, by phase and by DataLoader worker, and a word when something leaks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Optional

from composer.core import State
from composer.loggers import Logger

from composer_memprof.artifacts.child import is_own_child
from composer_memprof.artifacts.names import Naming, Stamp
from composer_memprof.artifacts.store import GrowingFile
from composer_memprof.callbacks.framework.base import Output, Ranks, Stages, when
from composer_memprof.callbacks.framework.phases import PhasedCallback
from composer_memprof.messages import human_bytes, warn
from composer_memprof.recorders.host.recorder import HostMemoryRecorder
from composer_memprof.schedule import ALWAYS, ScheduleInput

_SUFFIX = '.jsonl'
#: How often growth is looked at while training runs, in seconds.
_JUDGE_EVERY_S = 10.0
#: The share of the cgroup's limit at which a kill is within reach.
_LIMIT_SHARE = 0.9


class HostRSS(PhasedCallback):
    """Follows the memory of the training process, its DataLoader workers, and the cgroup that a cluster kills by.

    A thread samples every ``interval`` seconds; between the phases of a batch (dataloader, forward, backward,
    optimizer, eval, checkpoint) the size is read exactly, so that growth is charged to a phase. Each sample is a line
    of JSON, there even after a kill, and is logged as ``host_rss/...``. One warning comes when a process clearly
    grows, with the suspected phase or worker, and one when the cgroup's limit comes within reach.

    >>> from composer_memprof import HostRSS
    >>> callback = HostRSS(interval=1.0)

    Args:
        interval (float): seconds between samples. Default: ``0.5``.
        folder (str): format string over run variables. Default: ``'{run_name}/memprof'``.
        filename (str): format string. Default: ``'rank{rank}.{batch}.host_rss.jsonl'``, of the window's first batch.
        remote_file_name (str, optional): format string, with ``s3://`` or the like to that store, otherwise through
            Composer's logger. A folder without ``{batch}``, else a prefix. Default: ``None``, uploads nothing.
        overwrite (bool): replace files of the same name; otherwise they take ``.2``, … Default: ``False``.
        schedule (Schedule | dict | Callable, optional): Default: always, one window as long as the run.
        storage_options (dict, optional): for the store, beside the environment and fsspec's config.
        num_artifacts_to_keep (int): windows kept on this disk, once uploaded; -1 keeps all. Default: ``-1``.
        ranks (Sequence[int], optional): which ranks record. Default: all.
        stages (Sequence[str]): of ``train``, ``eval``, ``predict``; evaluation inside training is seen by ``train``.
            Default: ``('train',)``.
        compress (bool): gzip each file once it is complete. Default: ``False``.
        close_timeout (float): seconds that the close waits for uploads. Default: ``20``.

    Raises:
        ValueError: for a parameter that is not allowed, here or when the Trainer is made.
    """

    kind = 'host_rss'

    def __init__(
        self,
        interval: float = 0.5,
        folder: str = '{run_name}/memprof',
        filename: str = 'rank{rank}.{batch}.host_rss.jsonl',
        remote_file_name: Optional[str] = None,
        overwrite: bool = False,
        schedule: Optional[ScheduleInput] = None,
        storage_options: Optional[Mapping[str, Any]] = None,
        num_artifacts_to_keep: int = -1,
        ranks: Ranks = None,
        stages: Stages = ('train',),
        compress: bool = False,
        close_timeout: float = 20.0,
    ) -> None:
        if not isinstance(interval, (int, float)) or isinstance(interval, bool) or not 0.001 <= interval < 86400:
            raise ValueError(f'interval={interval!r} is not allowed; it is in seconds, from 0.001 to a day')
        super().__init__(
            when(schedule, ALWAYS, ranks, stages),
            Output(
                folder=folder,
                naming=Naming(filename, remote_file_name, _SUFFIX),
                storage_options=storage_options,
                overwrite=overwrite,
                num_artifacts_to_keep=num_artifacts_to_keep,
                compress=compress,
                close_timeout=close_timeout,
            ),
        )
        self.interval = float(interval)
        self._recorder: Optional[HostMemoryRecorder] = None
        self._file: Optional[GrowingFile] = None
        self._logged: Optional[dict[str, Any]] = None
        self._judged = 0.0
        self._warned_of: set[str] = set()

    def _check(self, state: State) -> None:
        del state  # unused
        self._warned_of = set()

    def _start(self, state: State, stamp: Stamp) -> None:
        self._file = self.store.grow(self.kind, _SUFFIX, stamp, compress=self.output.compress)
        batch = state.timestamp.batch.value
        self._recorder = HostMemoryRecorder(self._file.write, self.interval, batch, ignores=is_own_child)
        self._judged = time.monotonic()
        self._recorder.start()

    def _stop(self, state: State, stamp: Stamp) -> None:
        del stamp  # unused
        recorder, self._recorder = self._recorder, None
        file, self._file = self._file, None
        assert recorder is not None and file is not None
        self._judge(recorder, state)
        recorder.stop()
        file.close()

    def _cancel(self) -> None:
        recorder, self._recorder = self._recorder, None
        file, self._file = self._file, None
        try:
            if recorder is not None:
                recorder.stop()
        finally:
            if file is not None:
                file.close()

    def _phase_begins(self, phase: str, state: State) -> None:
        if self._recorder is not None:
            self._recorder.mark(phase, state.timestamp.batch.value)

    def batch_end(self, state: State, logger: Logger) -> None:
        recorder = self._recorder
        if recorder is not None:
            recorder.end_batch(state.timestamp.batch.value)
            if recorder.error is not None:
                raise recorder.error
            self._log(recorder, logger)
            if time.monotonic() - self._judged > _JUDGE_EVERY_S:
                self._judge(recorder, state)
        super().batch_end(state, logger)

    # -- words --------------------------------------------------------------------------------------------------

    def _log(self, recorder: HostMemoryRecorder, logger: Logger) -> None:
        """Each sample once, on this thread: loggers are not made for another."""
        sample = recorder.latest
        if sample is not self._logged:
            self._logged = sample
            logger.log_metrics({f'host_rss/{name}': value for name, value in sample.items()})

    def _judge(self, recorder: HostMemoryRecorder, state: State) -> None:
        self._judged = time.monotonic()
        suspect = recorder.fastest_growing()
        limit = recorder.cgroup_memory.limit if recorder.cgroup_memory is not None else None
        usage = recorder.cgroup_memory.usage if recorder.cgroup_memory is not None else 0
        batch = state.timestamp.batch.value
        if suspect is not None and 'growth' not in self._warned_of:
            self._warned_of.add('growth')
            growth = suspect.trend
            message = (
                f'host memory grows: {suspect.name}, {human_bytes(growth.per_batch)} a batch (99 % interval '
                f'{human_bytes(growth.low)} to {human_bytes(growth.high)}, batch {batch}). '
            )
            if limit is not None:
                batches = max(limit - usage, 0) / growth.per_batch
                message += f'The limit of {human_bytes(limit)} is reached in about {batches:.0f} batches. '
            warn(message + 'Look for what is kept from batch to batch there')
        if limit is not None and usage > _LIMIT_SHARE * limit and 'limit' not in self._warned_of:
            self._warned_of.add('limit')
            who = f'; growing: {suspect.name}' if suspect is not None else ''
            warn(
                f'host memory is at {human_bytes(usage)} of the {human_bytes(limit)} at which this job is killed '
                f'(batch {batch}){who}. Fewer DataLoader workers or a smaller prefetch_factor lower it'
            )
