"""HostRSS: host memory over time, by phase and by DataLoader worker, and a warning when something leaks."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, Optional

from composer.core import State
from composer.loggers import Logger
from typing_extensions import Unpack

from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.artifacts.store import GrowingFile, Part
from composer_memprof.artifacts.writing.child.fork import is_own_child
from composer_memprof.callbacks.framework.options import COMPRESS, SharedParameters, takes_shared_parameters
from composer_memprof.callbacks.framework.phases import PhasedCallback
from composer_memprof.callbacks.framework.rank_sample import FilesOnRanks, parse_files_on_ranks
from composer_memprof.callbacks.framework.run_names import run_name_of
from composer_memprof.messages import errors_logged, human_bytes, must_be, warn
from composer_memprof.recorders.host.containers import GrowingContainer, Search
from composer_memprof.recorders.host.recorder import HostMemoryRecorder
from composer_memprof.recorders.torch_private import data_loading
from composer_memprof.report.text.tables.files import write_json
from composer_memprof.schedule.constant import ALWAYS

#: Seconds between two checks for growth while training runs.
_CHECK_GROWTH_EVERY_S = 10.0
#: The share of the cgroup's limit from which a warning is due.
_LIMIT_SHARE = 0.9


def _found(search: Search) -> dict[str, Any]:
    container = None
    with errors_logged('the container that grows was not found'):
        container = search()
    return asdict(GrowingContainer() if container is None else container)


def _dataset_of(state: State) -> Any:
    """What the training's DataLoader reads. A loop of the user's own has no loader that Composer knows."""
    found = getattr(state.dataloader, 'dataset', None)
    return data_loading.newest_dataset() if found is None else found


@takes_shared_parameters(
    filename='rank{rank}.{batch}.host_rss.jsonl',
    docs={
        'filename': 'format string; ``{batch}`` is the first batch of the window. '
        "Default: ``'rank{rank}.{batch}.host_rss.jsonl'``.",
        'schedule': 'which batches are recorded. Default: always, one window as long as the run.',
        'stages': 'of ``train``, ``eval``, ``predict``; ``train`` includes evaluations inside training. '
        "Default: ``('train',)``.",
        'compress': f'each file, once it is complete: {COMPRESS}. Default: ``False``.',
    },
)
class HostRSS(PhasedCallback):
    """Records the memory of the training process, its DataLoader workers and the cgroup whose limit kills the job.

    A thread samples every ``interval`` seconds. Between the phases of a batch (dataloader, forward, backward,
    optimizer, eval, checkpoint) the size is read exactly, so that growth is charged to a phase. Each sample is a line
    of JSON, which survives a kill, and is logged as ``host_rss/…``; every ten seconds, and at the end, so is
    ``host_rss/growth_per_batch``, the trend of the process in bytes, clear or not. A window's peaks, its growth and at
    most 100 samples are in its ``.summary.json``. It warns once when a process clearly grows, with the suspected phase
    or worker, and once when memory comes close to the cgroup's limit.

    >>> from composer_memprof import HostRSS
    >>> callback = HostRSS(interval=1.0)

    Args:
        interval (float): seconds between samples. Default: ``0.5``.
        files_on_ranks (int | Sequence[int] | dict, optional): the ranks that write all samples; the others
            write the summary alone, at the end. ``[0, -1]`` is the first and the last, ``{'every': 64}`` each 64th,
            ``{'ranks': [0, -1], 'every': 64}`` both. Default: all.
        <shared parameters>

    Raises:
        ValueError: for a parameter that is not allowed, here or when the Trainer is made.
    """

    kind = 'host_rss'
    suffix = '.jsonl'
    default_schedule = ALWAYS
    grows_in_memory = False

    def __init__(
        self, interval: float = 0.5, files_on_ranks: FilesOnRanks = None, **shared: Unpack[SharedParameters]
    ) -> None:
        if not isinstance(interval, (int, float)) or isinstance(interval, bool) or not 0.001 <= interval < 86400:
            raise must_be('interval', '0.001 to 86400 seconds', interval)
        super().__init__(suffix=self.suffix, **shared)
        self.interval = float(interval)
        self._recorder: Optional[HostMemoryRecorder] = None
        self._file_ranks = parse_files_on_ranks(files_on_ranks)
        self._writes_files = True
        self._file: Optional[GrowingFile] = None
        self._first: Optional[Stamp] = None
        self._logged: Optional[dict[str, Any]] = None
        self._growth_checked = 0.0

    def _check(self, state: State) -> None:
        super()._check(state)
        self._writes_files = self._file_ranks.has_this_rank()

    def _start(self, state: State, stamp: Stamp) -> None:
        self._first = stamp
        if self._writes_files:
            self._file = self.store.grow(self.kind, self.suffix, stamp, compress=self.output.compress)
        write = (lambda line: None) if self._file is None else self._file.write
        batch = state.timestamp.batch.value
        self._recorder = HostMemoryRecorder(write, self.interval, batch, ignores=is_own_child)
        self._growth_checked = time.monotonic()
        self._recorder.start()

    def _stop(self, state: State, stamp: Stamp) -> None:
        del stamp  # the files carry the window's first batch
        recorder, self._recorder = self._recorder, None
        file, self._file = self._file, None
        assert recorder is not None and self._first is not None
        self._check_growth(recorder, state)
        self._search(recorder, state, is_last=True)
        recorder.stop()
        assert recorder.summary is not None
        document = {**self._stage_head(state).as_dict(), **recorder.summary.as_dict()}
        summary = Part(f'{self.kind}.summary', '.summary.json', lambda path: write_json(document, path))
        if file is not None:
            file.close(summary)
        else:
            self.store.save([summary], self._first)

    def _cancel(self) -> None:
        recorder, self._recorder = self._recorder, None
        file, self._file = self._file, None
        try:
            if recorder is not None:
                recorder.stop()
        finally:
            if file is not None:
                file.close()

    @property
    def has_recorder(self) -> bool:
        return self._recorder is not None

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
            self._search(recorder, state)
            if recorder.wants_dataset:
                with errors_logged("the data set's Python objects were not measured"):
                    recorder.look_at(_dataset_of(state))
            if time.monotonic() - self._growth_checked > _CHECK_GROWTH_EVERY_S:
                self._check_growth(recorder, state)
        super().batch_end(state, logger)

    def _search(self, recorder: HostMemoryRecorder, state: State, *, is_last: bool = False) -> None:
        """Let a child look for the container that gets longer as the process grows."""
        search = recorder.search_for_container(is_last=is_last)
        if search is None:
            return
        head = self._stage_head(state).as_dict()
        part = Part(f'{self.kind}.growing', '.growing.json', lambda path: write_json({**head, **_found(search)}, path))
        self.store.save([part], Stamp(run_name_of(state), state.timestamp))

    # -- what is logged and warned of ---------------------------------------------------------------------------------

    def _log(self, recorder: HostMemoryRecorder, logger: Logger) -> None:
        """Log each sample once, on this thread: loggers are not safe to call from another."""
        sample = recorder.latest
        if sample is not self._logged:
            self._logged = sample
            named = {f'host_rss/{name}': value for name, value in sample.items()}
            logger.log_metrics(self._repeats.left_out(named, constants=['host_rss/cgroup_limit']))

    def _check_growth(self, recorder: HostMemoryRecorder, state: State) -> None:
        self._growth_checked = time.monotonic()
        trend = recorder.trend()
        if trend is not None:
            self._window_metrics.add({'host_rss/growth_per_batch': trend.per_batch})
        suspect = recorder.fastest_growing()
        limit = recorder.cgroup_memory.limit if recorder.cgroup_memory is not None else None
        usage = recorder.cgroup_memory.usage if recorder.cgroup_memory is not None else 0
        batch = state.timestamp.batch.value
        if suspect is not None and 'growth' not in self._warned:
            self._warned.add('growth')
            growth = suspect.trend
            message = (
                f'host memory grows: {suspect.name}, {human_bytes(growth.per_batch)} a batch (99 % interval '
                f'{human_bytes(growth.low)} to {human_bytes(growth.high)}, batch {batch}). '
            )
            if limit is not None:
                batches = max(limit - usage, 0) / growth.per_batch
                message += f'It reaches the limit of {human_bytes(limit)} in about {batches:.0f} batches. '
            warn(message + 'Look there for objects that are kept from batch to batch')
        if limit is not None and usage > _LIMIT_SHARE * limit and 'limit' not in self._warned:
            self._warned.add('limit')
            cause = f'; growing: {suspect.name}' if suspect is not None else ''
            warn(
                f'host memory is at {human_bytes(usage)} of the {human_bytes(limit)} at which this job is killed '
                f'(batch {batch}){cause}. Use fewer DataLoader workers or a smaller prefetch_factor'
            )
