"""StepTimes: how long each phase of each batch takes, on each rank."""

from __future__ import annotations

import time
import weakref
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

import torch
from composer.core import State
from composer.loggers import Logger
from composer.utils import dist
from torch.utils.data import DataLoader
from typing_extensions import Unpack

from composer_memprof.analysis.memory.blocks.frames import is_own
from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.artifacts.store import GrowingFile, Part
from composer_memprof.callbacks.framework.hooks import of_recorder
from composer_memprof.callbacks.framework.options import COMPRESS, SharedParameters, takes_shared_parameters
from composer_memprof.callbacks.framework.phases import PhasedCallback
from composer_memprof.callbacks.framework.rank_sample import FilesOnRanks, parse_files_on_ranks
from composer_memprof.messages import check_count
from composer_memprof.recorders.batch_shape import token_shape
from composer_memprof.recorders.step_times import data_wait
from composer_memprof.recorders.step_times.lines import LineSampler
from composer_memprof.recorders.step_times.pauses import Pauses
from composer_memprof.recorders.step_times.recorder import StepTimesRecorder
from composer_memprof.recorders.step_times.summary import BatchTimes
from composer_memprof.recorders.step_times.timers import CudaTimer, HostTimer
from composer_memprof.recorders.step_times.window import StepTimesWindow
from composer_memprof.recorders.tensors import tensors_in
from composer_memprof.report.text.tables.files import write_json
from composer_memprof.report.text.tables.head import StageHead
from composer_memprof.schedule.constant import ALWAYS
from composer_memprof.vocabulary import BETWEEN_PHASES, DATALOADER, FORWARD

#: Seconds that the close waits for the GPU to reach the end of the last batch.
_LAST_BATCH_S = 5.0


@takes_shared_parameters(
    filename='rank{rank}.{batch}.step_times.jsonl',
    docs={
        'filename': 'format string; ``{batch}`` is the first batch of the window. '
        "Default: ``'rank{rank}.{batch}.step_times.jsonl'``.",
        'schedule': 'which batches are recorded. Default: always, one window as long as the run.',
        'compress': f'the records, once they are complete: {COMPRESS}. Default: ``False``.',
    },
)
class StepTimes(PhasedCallback):
    """Times each phase of each batch: waiting for data, forward and backward of each microbatch, optimizer, the rest.

    On a GPU the times are the device's, by CUDA events, without any synchronization; on a CPU they are the host's. Each
    window writes a line of JSON for each batch, and a summary with percentiles, shares and the slowest batches as
    ``.summary.json``. A batch lasts from the request for its data to the request for the next batch's, so evaluations
    and checkpoints in between belong to it.

    To find a slow rank, compare the ranks' summaries. All ranks wait for the slowest one in ``dataloader`` (Composer
    synchronizes them there) and in collectives, mostly in ``backward``. The slow rank is the one with a long ``data``
    (its own DataLoader's time) or a long ``forward``, while the others wait.

    Each rank logs as ``step_times/…``, once a batch has ended (on a GPU a batch later): the seconds of its ``total``,
    ``data`` and each phase, ``samples_per_second`` and ``tokens_per_second``; every ``log_every_n_batches`` also
    ``total_p50``, ``_p90``, ``_p99`` and the same for each phase, and ``waiting_share``, the share of time spent waiting
    for data. A zero is not logged again while it stays one. If several stages are recorded, those of ``eval`` and
    ``predict`` are logged as ``step_times/eval/…``.

    >>> from composer_memprof import StepTimes
    >>> callback = StepTimes(log_every_n_batches=100)

    Args:
        log_every_n_batches (int): how often percentiles are logged. Default: ``50``.
        files_on_ranks (int | Sequence[int] | dict, optional): the ranks that write a line for each batch; the others
            write the summary alone. ``[0, -1]`` is the first and the last, ``{'every': 64}`` each 64th,
            ``{'ranks': [0, -1], 'every': 64}`` both. Default: all.
        <shared parameters>

    Raises:
        ValueError: for a parameter that is not allowed, here or when the Trainer is made.
    """

    kind = 'step_times'
    torch_needs = {'': data_wait.NEEDS}
    suffix = '.step_times.jsonl'
    default_schedule = ALWAYS
    grows_in_memory = False

    def __init__(
        self, log_every_n_batches: int = 50, files_on_ranks: FilesOnRanks = None, **shared: Unpack[SharedParameters]
    ) -> None:
        check_count('log_every_n_batches', log_every_n_batches)
        self._file_ranks = parse_files_on_ranks(files_on_ranks)
        self._writes_files = True
        super().__init__(**shared)
        self.log_every_n_batches = log_every_n_batches

    def _forget_run(self) -> None:
        super()._forget_run()
        self._recorder = StepTimesRecorder(HostTimer())
        self._data_wait = data_wait.DataWait()
        self._open: Optional[_OpenFile] = None
        self._epoch_began: Optional[float] = None
        #: Ended windows with batches whose times are not known yet.
        self._pending: list[_OpenFile] = []

    def _check(self, state: State) -> None:
        self._writes_files = self._file_ranks.has_this_rank()
        on_gpu = state.device.name == 'gpu' and torch.cuda.is_available()
        self._recorder = StepTimesRecorder(CudaTimer() if on_gpu else HostTimer())

    def init(self, state: State, logger: Logger) -> None:
        super().init(state, logger)
        self._logger = weakref.ref(logger)

    # -- windows ------------------------------------------------------------------------------------------------------

    def fit_start(self, state: State, logger: Logger) -> None:
        super().fit_start(state, logger)
        self._data_wait.start()

    def _start(self, state: State, stamp: Stamp) -> None:
        self._data_wait.start()  # an evaluation or prediction without a fit
        loader = _loader_settings(state.dataloader)
        file = None
        if self._writes_files:
            file = self.store.grow(self.kind, self.output.naming.suffix, stamp, compress=self.output.compress)
        write = None if file is None else file.write
        workers = 0 if loader is None else loader['num_workers']
        causes = _Causes(LineSampler(lambda: self._recorder.phase, is_own), Pauses())
        self._open = _OpenFile(StepTimesWindow(write, workers), file, stamp, self._stage, loader, causes)
        causes.start()

    def _batch_begins(self, state: State) -> None:
        shape = token_shape(state.batch)
        self._recorder.begin_batch(
            self._windows.count(self._stage),
            state.timestamp.epoch.value,
            samples=next((tensor.shape[0] for tensor in tensors_in(state.batch) if tensor.dim()), None),
            tokens=None if shape is None else shape[0] * shape[1],
            data=self._data_wait.take(),
            owner=self._open,
        )

    def before_train_batch(self, state: State, logger: Logger) -> None:
        del state, logger  # unused
        self._recorder.retry_batch()

    def _batch_ended(self, state: State) -> None:
        del state  # unused
        self._recorder.end_batch()
        self._take_known()
        if self._open is not None and self._open.window.error is not None:
            raise self._open.window.error

    def _stop(self, state: State, stamp: Stamp) -> None:
        del state, stamp  # the files carry the window's first batch
        opened, self._open = self._open, None
        assert opened is not None
        opened.causes.stop()
        self._pending.append(opened)
        self._save_pending()

    def _cancel(self) -> None:
        """After an error: save what is known."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.causes.stop()
            self._pending.append(opened)
        self._save_pending(anyway=True)

    def fit_end(self, state: State, logger: Logger) -> None:
        super().fit_end(state, logger)
        self._recorder.close_batch(now=True)
        self._save_pending()

    def _before_close(self) -> None:
        self._data_wait.stop()
        self._recorder.close_batch(now=True)
        deadline = time.monotonic() + _LAST_BATCH_S
        while self._pending:
            self._save_pending(anyway=time.monotonic() > deadline)
            time.sleep(0.001 if self._pending else 0)

    def _save_pending(self, anyway: bool = False) -> None:
        """Save the ended windows whose times are all known. The GPU may not have reached the last marks yet."""
        try:
            self._take_known()
        except Exception:  # a failed device: the times that are missing can't be read any more
            anyway = True
            raise
        finally:
            pending, self._pending = self._pending, []
            for ended in pending:
                if anyway or not self._recorder.is_waiting_for(ended):
                    ended.window.close()
                    summary = self._summary_part(ended)
                    if ended.file is not None:
                        ended.file.close(summary)
                    else:
                        self.store.save([summary], ended.stamp)
                else:
                    self._pending.append(ended)

    def _summary_part(self, ended: _OpenFile) -> Part:
        at = ended.stamp.timestamp
        head = StageHead(dist.get_global_rank(), at.epoch.value, at.batch.value, ended.stage)
        document = {
            **head.as_dict(),
            **ended.window.tally.summary(self._recorder.clock).as_dict(),
            'loader': ended.loader,
            'loader_starts': {'count': len(ended.starts), 'seconds': sum(ended.starts)},
            'lines': ended.causes.lines.found(),
            'within_phases': ended.causes.lines.shares(),
            'pauses': asdict(ended.causes.pauses.found()),
        }
        suffix = f'{self.output.naming.suffix.removesuffix(".jsonl")}.summary.json'
        return Part(f'{self.kind}.summary', suffix, lambda path: write_json(document, path))

    def _take_known(self) -> None:
        for owner, times in self._recorder.take_known():
            owner.window.add(times)
            self._log(owner, times)

    def _log(self, opened: _OpenFile, times: BatchTimes) -> None:
        logger, tally = self._logger(), opened.window.tally
        metrics = times.columns()
        for name, count in (('samples', times.samples), ('tokens', times.tokens)):
            if count is not None and times.total > 0:
                metrics[f'{name}_per_second'] = count / times.total
        if tally.batches % self.log_every_n_batches == 0:
            metrics |= {**tally.recent_percentiles(), 'waiting_share': tally.waiting_share}
        group = self._metric_group(self.kind, opened.stage)
        if logger is not None:
            # At the current batch, though the times are those of an earlier one: W&B drops what comes late.
            named = {f'{group}/{name}': value for name, value in metrics.items()}
            logger.log_metrics(self._repeats.left_out(named))

    # -- phases -------------------------------------------------------------------------------------------------------

    def _phase_begins(self, phase: str, state: State) -> None:
        del state  # unused
        self._recorder.mark(phase)

    @of_recorder
    def epoch_start(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._phase_begins(BETWEEN_PHASES, state)
        self._epoch_began = time.perf_counter()  # a DataLoader starts its workers between this and the first request

    @of_recorder
    def before_dataloader(self, state: State, logger: Logger) -> None:
        began, self._epoch_began = self._epoch_began, None
        if began is not None and self._open is not None:
            self._open.starts.append(time.perf_counter() - began)
        super().before_dataloader(state, logger)

    def batch_start(self, state: State, logger: Logger) -> None:
        self._recorder.close_batch()
        self._save_pending()
        super().batch_start(state, logger)

    # Evaluation and prediction have no event before their data is requested: that is when the last batch ends.

    def eval_start(self, state: State, logger: Logger) -> None:
        super().eval_start(state, logger)
        self._request_data('eval')

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        self._data_is_here('eval')
        super().eval_batch_start(state, logger)

    def eval_before_forward(self, state: State, logger: Logger) -> None:
        self._mark_in('eval', FORWARD)

    def eval_after_forward(self, state: State, logger: Logger) -> None:
        self._mark_in('eval', BETWEEN_PHASES)

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        super().eval_batch_end(state, logger)
        self._request_data('eval')

    def predict_start(self, state: State, logger: Logger) -> None:
        super().predict_start(state, logger)
        self._request_data('predict')

    def predict_batch_start(self, state: State, logger: Logger) -> None:
        self._data_is_here('predict')
        super().predict_batch_start(state, logger)

    def predict_before_forward(self, state: State, logger: Logger) -> None:
        self._mark_in('predict', FORWARD)

    def predict_after_forward(self, state: State, logger: Logger) -> None:
        self._mark_in('predict', BETWEEN_PHASES)

    def predict_batch_end(self, state: State, logger: Logger) -> None:
        super().predict_batch_end(state, logger)
        self._request_data('predict')

    def _request_data(self, stage: str) -> None:
        """The data of the next batch of ``stage`` is requested."""
        if self._is_timed(stage):
            self._recorder.mark(DATALOADER)
            self._recorder.close_batch()

    def _data_is_here(self, stage: str) -> None:
        if self._is_timed(stage):
            self._recorder.mark(BETWEEN_PHASES)

    def _is_timed(self, stage: str) -> bool:
        """Whether batches of ``stage`` are recorded by themselves; inside a training window they are a part of it."""
        return stage in self._windows and not (self.is_recording and self._stage != stage)

    def _mark_in(self, stage: str, phase: str) -> None:
        if self.is_recording and self._stage == stage:
            self._recorder.mark(phase)


@dataclass(frozen=True, eq=False)
class _OpenFile:
    """A window, and the file of its records if this rank writes one."""

    window: StepTimesWindow
    file: Optional[GrowingFile]
    stamp: Stamp
    stage: str
    loader: Optional[dict[str, Any]]
    causes: _Causes
    #: Seconds at the start of each epoch but the first, in which a DataLoader starts its workers.
    starts: list[float] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _Causes:
    """What shows why a window's batches take their time."""

    lines: LineSampler
    pauses: Pauses

    def start(self) -> None:
        self.lines.start()
        self.pauses.start()

    def stop(self) -> None:
        self.lines.stop()
        self.pauses.stop()


def _loader_settings(loader: Any) -> Optional[dict[str, Any]]:
    """How a DataLoader loads; None for other iterables."""
    if not isinstance(loader, DataLoader):
        return None
    return {
        'num_workers': loader.num_workers,
        'prefetch_factor': loader.prefetch_factor,
        'persistent_workers': loader.persistent_workers,
    }
