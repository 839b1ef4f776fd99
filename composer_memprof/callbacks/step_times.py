"""StepTimes: how long each phase of each batch takes, on each rank."""

from __future__ import annotations

import collections
import json
import time
import weakref
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Optional

import torch
from composer.core import State
from composer.loggers import Logger
from composer.utils import dist
from typing_extensions import Unpack

from composer_memprof.artifacts.names import Stamp
from composer_memprof.artifacts.store import GrowingFile, Part
from composer_memprof.callbacks.framework.options import SharedParameters, takes_shared_parameters
from composer_memprof.callbacks.framework.phases import PhasedCallback
from composer_memprof.messages import must_be
from composer_memprof.recorders.batch_shape import token_shape
from composer_memprof.recorders.host.sampler import Sampler
from composer_memprof.recorders.step_times.clocks import Clock, CudaClock, HostClock
from composer_memprof.recorders.step_times.recorder import StepTimesRecorder
from composer_memprof.recorders.step_times.summary import BatchTimes, StepTimesTally
from composer_memprof.recorders.tensors import tensors_in
from composer_memprof.report.text.files import write_json
from composer_memprof.report.text.head import StageHead
from composer_memprof.schedule.constant import ALWAYS
from composer_memprof.vocabulary import BETWEEN_PHASES, DATALOADER, FORWARD

#: Seconds between two writes of records, which a thread does.
_WRITE_EVERY_S = 0.5
#: Seconds that the close waits for the GPU to reach the end of the last batch.
_LAST_BATCH_S = 5.0


@takes_shared_parameters(
    filename='rank{rank}.{batch}.step_times.jsonl',
    docs={
        'filename': 'format string; ``{batch}`` is the first batch of the window. '
        "Default: ``'rank{rank}.{batch}.step_times.jsonl'``.",
        'schedule': 'which batches are recorded. Default: always, one window as long as the run.',
        'compress': 'gzip the records once they are complete. Default: ``False``.',
    },
)
class StepTimes(PhasedCallback):
    """Times each phase of each batch: waiting for data, forward and backward of each microbatch, optimizer, the rest.

    On a GPU the times are the device's, by CUDA events, without any synchronization; on a CPU they are the host's. Each
    window writes a line of JSON for each batch, and a summary with percentiles, shares and the slowest batches as
    ``.summary.json``: compare the summaries of the ranks to find a slow one, and the phase that makes it slow. A batch
    lasts from the request for its data to the request for the next batch's, so evaluations and checkpoints in between
    belong to it.

    Each rank logs as ``step_times/…``: the seconds of ``total`` and each phase of every batch, ``samples_per_second``
    and ``tokens_per_second``; every ``log_every_n_batches`` also ``total_p50``, ``_p90``, ``_p99`` and the same for
    each phase, and ``waiting_share``, the share of time spent waiting for data.

    >>> from composer_memprof import StepTimes
    >>> callback = StepTimes(log_every_n_batches=50)

    Args:
        log_every_n_batches (int): how often percentiles are logged. Default: ``10``.
        <shared parameters>

    Raises:
        ValueError: for a parameter that is not allowed, here or when the Trainer is made.
    """

    kind = 'step_times'
    suffix = '.step_times.jsonl'
    default_schedule = ALWAYS

    def __init__(self, log_every_n_batches: int = 10, **shared: Unpack[SharedParameters]) -> None:
        if not isinstance(log_every_n_batches, int) or isinstance(log_every_n_batches, bool) or log_every_n_batches < 1:
            raise must_be('log_every_n_batches', 'a whole number from 1', log_every_n_batches)
        super().__init__(**shared)
        self.log_every_n_batches = log_every_n_batches
        self._clock: Clock = HostClock()
        self._open: Optional[_Recording] = None
        self._settling: list[_Recording] = []
        self._earlier: list[tuple[str, Any]] = []

    def _check(self, state: State) -> None:
        self._clock = CudaClock() if state.device.name == 'gpu' and torch.cuda.is_available() else HostClock()
        self._open, self._settling, self._earlier = None, [], []

    def init(self, state: State, logger: Logger) -> None:
        super().init(state, logger)
        self._logger = weakref.ref(logger)

    # -- windows ------------------------------------------------------------------------------------------------------

    def _start(self, state: State, stamp: Stamp) -> None:
        del state  # unused
        file = self.store.grow(self.kind, self.output.naming.suffix, stamp, compress=self.output.compress)
        self._open = _Recording(StepTimesRecorder(self._clock, self._earlier), file, stamp, self._stage)
        self._earlier = []

    def _batch_begins(self, state: State) -> None:
        if self._open is not None:
            shape = token_shape(state.batch)
            samples = next((tensor.shape[0] for tensor in tensors_in(state.batch) if tensor.dim()), None)
            tokens = None if shape is None else shape[0] * shape[1]
            batch, epoch = state.timestamp.batch.value, state.timestamp.epoch.value
            self._open.recorder.begin_batch(batch, epoch, samples, tokens)

    def _batch_ended(self, state: State) -> None:
        del state  # unused
        if self._open is not None:
            self._open.recorder.end_batch()
            self._log(self._open)
            if self._open.writer.error is not None:
                raise self._open.writer.error

    def _stop(self, state: State, stamp: Stamp) -> None:
        del state, stamp  # the files carry the window's first batch
        recording, self._open = self._open, None
        assert recording is not None
        recording.recorder.stop()
        self._settling.append(recording)
        self._save_settled()

    def _cancel(self) -> None:
        recording, self._open = self._open, None
        if recording is not None:
            recording.close()

    def batch_start(self, state: State, logger: Logger) -> None:
        if self._settling:
            self._save_settled()
        super().batch_start(state, logger)

    def _before_close(self) -> None:
        deadline = time.monotonic() + _LAST_BATCH_S
        while self._settling:
            self._save_settled(anyway=time.monotonic() > deadline)
            time.sleep(0.001 if self._settling else 0)

    def _save_settled(self, anyway: bool = False) -> None:
        """Save the windows that have ended and whose times are all known; a GPU may still be on its way to them."""
        settling, self._settling = self._settling, []
        for recording in settling:
            self._log(recording)
            if anyway or recording.recorder.is_settled:
                recording.close()
                self._save_summary(recording)
            else:
                self._settling.append(recording)

    def _save_summary(self, recording: _Recording) -> None:
        now = recording.stamp.timestamp
        head = StageHead(dist.get_global_rank(), now.epoch.value, now.batch.value, recording.stage)
        document = {**head.as_dict(), **recording.tally.summary(self._clock.name).as_dict()}
        suffix = f'{self.output.naming.suffix.removesuffix(".jsonl")}.summary.json'
        part = Part(f'{self.kind}.summary', suffix, lambda path: write_json(document, path))
        self.store.save([part], recording.stamp)

    def _log(self, recording: _Recording) -> None:
        logger, tally = self._logger(), recording.tally
        for times in recording.take_finished():
            metrics = times.columns()
            for name, count in (('samples', times.samples), ('tokens', times.tokens)):
                if count is not None and times.total > 0:
                    metrics[f'{name}_per_second'] = count / times.total
            if tally.batches % self.log_every_n_batches == 0:
                metrics |= {**tally.recent_percentiles(), 'waiting_share': tally.waiting_share}
            if logger is not None:
                logger.log_metrics({f'step_times/{name}': value for name, value in metrics.items()})

    # -- phases -------------------------------------------------------------------------------------------------------

    def _phase_begins(self, phase: str, state: State) -> None:
        del state  # unused
        if self._open is not None:
            self._open.recorder.mark(phase)
        elif phase == DATALOADER:
            self._earlier = [(phase, self._clock.mark())]  # the data of a window's first batch
        elif phase == BETWEEN_PHASES and len(self._earlier) == 1:
            self._earlier.append((phase, self._clock.mark()))

    # Evaluation and prediction have no event before their data is requested: that is when the last batch ends.

    def eval_start(self, state: State, logger: Logger) -> None:
        super().eval_start(state, logger)
        self._expect_data('eval')

    def eval_before_forward(self, state: State, logger: Logger) -> None:
        self._mark_outside_training(FORWARD)

    def eval_after_forward(self, state: State, logger: Logger) -> None:
        self._mark_outside_training(BETWEEN_PHASES)

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        super().eval_batch_end(state, logger)
        self._mark_outside_training(DATALOADER)

    def predict_start(self, state: State, logger: Logger) -> None:
        super().predict_start(state, logger)
        self._expect_data('predict')

    def predict_before_forward(self, state: State, logger: Logger) -> None:
        self._mark_outside_training(FORWARD)

    def predict_after_forward(self, state: State, logger: Logger) -> None:
        self._mark_outside_training(BETWEEN_PHASES)

    def predict_batch_end(self, state: State, logger: Logger) -> None:
        super().predict_batch_end(state, logger)
        self._mark_outside_training(DATALOADER)

    def _expect_data(self, stage: str) -> None:
        if self._open is None and stage in self._windows:
            self._earlier = [(DATALOADER, self._clock.mark())]

    def _mark_outside_training(self, phase: str) -> None:
        if self._open is not None and self._stage != 'train':
            self._open.recorder.mark(phase)


class _Recording:
    """One window: its recorder, what the batches add up to, and the thread that writes their records."""

    def __init__(self, recorder: StepTimesRecorder, file: GrowingFile, stamp: Stamp, stage: str) -> None:
        self.recorder = recorder
        self.stamp = stamp
        self.stage = stage
        self.tally = StepTimesTally()
        self._file = file
        self._unwritten: collections.deque[BatchTimes] = collections.deque()
        self.writer = Sampler('memprof-step-times', _WRITE_EVERY_S, self._write)
        self.writer.start()

    def take_finished(self) -> Iterator[BatchTimes]:
        """Each batch whose times have become known, once it is added up."""
        for times in self.recorder.take_finished():
            self.tally.add(times)
            self._unwritten.append(times)
            yield times

    def close(self) -> None:
        """Write what is left, and close the file."""
        try:
            if self.writer.stop():
                self._write()
        finally:
            self._file.close()

    def _write(self) -> None:
        while self._unwritten:
            self._file.write(json.dumps(asdict(self._unwritten.popleft())))
