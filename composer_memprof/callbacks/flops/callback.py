"""Flops: the floating-point operations of a batch, and how much of the device they put to use."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any, Optional

from composer.core import State
from composer.loggers import Logger
from composer.utils import dist
from typing_extensions import Unpack

from composer_memprof.analysis.flops.gpt_formula import GPTShape, find_shape, fits_weights
from composer_memprof.analysis.flops.summary import DevicePeak
from composer_memprof.analysis.flops.utilization import BatchShape, WindowFlops
from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.artifacts.store import Part
from composer_memprof.callbacks.flops.count_apart import CountError, count_apart
from composer_memprof.callbacks.flops.device_peak import find_peak
from composer_memprof.callbacks.flops.stage_step import step_of
from composer_memprof.callbacks.framework.base import ProfilingCallback
from composer_memprof.callbacks.framework.options import COMPRESS, SharedParameters, takes_shared_parameters
from composer_memprof.messages import check_count, log_error, must_be, warn
from composer_memprof.recorders import compiled
from composer_memprof.recorders.batch_shape import shapes_of, token_shape
from composer_memprof.recorders.compiled import is_compiled, may_compile
from composer_memprof.recorders.flops import recorder as flops
from composer_memprof.recorders.flops.recorder import FlopsRecorder
from composer_memprof.recorders.flops.result import BatchFlops
from composer_memprof.recorders.stopwatch import Stopwatch
from composer_memprof.report.text.tables.files import write_json, write_text
from composer_memprof.report.text.tables.flops import FlopsReport, flops_text
from composer_memprof.schedule.constant import ALWAYS

#: Shapes of batches that are counted, each once; batches of further shapes are left out.
_MOST_SHAPES = 64
#: Metrics that are logged again only when they have changed, with the shape of the batches.
_CONSTANT_FOR_A_SHAPE = frozenset(
    (
        'batch_flops',
        'batch_flops_all_ranks_estimate',
        'batch_flops_from_formula',
        'peak_flops_per_sec',
        'total_flops',
        'tracked_operations',
        'untracked_operations',
    )
)
_NOT_COUNTED = (
    'torch.compile hides what the model computes, and no uncompiled copy of it could be counted: {}. To count, train a '
    'few batches with compile_config=None'
)


@takes_shared_parameters(
    filename='rank{rank}.{batch}.flops.json',
    docs={
        'schedule': 'which batches are recorded. Default: always, one window as long as the run. A shape that an '
        'earlier window has traced is timed at once.',
        'compress': f'the JSON: {COMPRESS}. Default: ``False``.',
    },
)
class Flops(ProfilingCallback):
    """Counts the FLOPs of a batch by tracing it, and logs the share of the device's peak that training reaches.

    The first batch of each shape is traced with all its microbatches: by torch's formulas, and ours where torch has
    none, by module and operation, forward and backward. Operators without a formula are listed and counted. A traced
    batch is slower; all others are timed, from the end of one to the end of the next, without evaluations. Model FLOPs
    (``batch_flops``, ``mfu``) leave out what is computed twice, by checkpoints and by attention that keeps no scores;
    hardware FLOPs (``hardware_flops``, ``hfu``) include it. Multiplication and addition count as two, causal attention
    counts in full, element-wise operators not at all. For GPT-style models whose attributes or config
    (``n_layers``, ``hidden_size``, …) give their shape, the figure of the usual formula is added, if it is within 5 %
    of the count.

    Each rank logs as ``flops/…``: ``mfu, batch_flops, peak_flops_per_sec`` (what the device can do in a second; under its
    old name too, ``total_flops``), ``actual_batches_per_sec, max_batches_per_sec, batch_flops_from_formula,
    mfu_from_formula, tracked_operations, untracked_operations`` (calls); rank 0 also ``batch_flops_all_ranks_estimate``,
    its own count times the world size. Rates are logged each time; the others once, and when they have changed.
    If several stages are recorded, those of ``eval`` and ``predict`` are logged as ``flops/eval/…``. Each window writes
    ``.json`` and a short ``.txt``; an evaluation that is recorded ends the training window, and another one follows.

    Of a model under ``torch.compile``, even in part, each shape is counted once on an uncompiled copy without data, the
    batch as one microbatch, in a forked process, so that nothing of it reaches the training, which waits up to a minute.
    A model that reads values of its tensors, communicates in its forward, or is sharded is only timed, and so is every
    compiled one beside a GPU, where torch cannot compute in a forked process. If functions are compiled, the first batch
    of a shape is left to the compiler and the second is traced.

    >>> from composer_memprof import Flops
    >>> callback = Flops(log_every_n_batches=10, stages=['train', 'eval'])

    Args:
        log_every_n_batches (int): how often a window logs; the traced batch and the first timed one are logged too.
            Default: ``5``.
        peak_flops (float, optional): FLOPs per second that one device can do. Default: from Composer's table of GPUs
            for the run's precision; on a CPU the measured rate of matrix products.
        <shared parameters>

    Raises:
        ValueError: for a parameter that is not allowed, here or when the Trainer is made.
    """

    kind = 'flops'
    windows_are_small = True
    torch_needs = {'': (*flops.NEEDS, *compiled.NEEDS)}
    suffix = '.flops.json'
    default_schedule = ALWAYS

    def __init__(
        self, log_every_n_batches: int = 5, peak_flops: Optional[float] = None, **shared: Unpack[SharedParameters]
    ) -> None:
        check_count('log_every_n_batches', log_every_n_batches)
        if peak_flops is not None and not _is_peak(peak_flops):
            raise must_be('peak_flops', 'FLOPs per second above 0, as 312e12', peak_flops)
        super().__init__(**shared)
        self.log_every_n_batches = log_every_n_batches
        self.peak_flops = peak_flops
        self._forget_model()

    def _forget_model(self) -> None:
        self._peak: Optional[DevicePeak] = None
        self._model_shape: Optional[GPTShape] = None
        self._compiled = False
        self._formula_fits_weights = False
        self._not_counted = ''  # why a compiled model can't be
        self._traced = False
        self._shapes: dict[Hashable, BatchShape] = {}
        self._trained = 0
        self._window: Optional[WindowFlops] = None
        self._recorder: Optional[FlopsRecorder] = None
        self._stopwatch = Stopwatch()
        self._shape: Optional[BatchShape] = None
        self._microbatch_size: Any = None

    # -- before the first batch ---------------------------------------------------------------------------------------

    def init(self, state: State, logger: Logger) -> None:
        super().init(state, logger)
        self._forget_model()
        self._logger = weakref.ref(logger)

    def fit_start(self, state: State, logger: Logger) -> None:
        super().fit_start(state, logger)
        if 'train' in self._windows:
            self._inspect_model(state)

    def _start_pass(self, stage: str, state: State) -> None:
        self._stopwatch.pause()
        if self.is_recording and self._stage != stage and stage in self.when.stages:
            self._finish(state)
        super()._start_pass(stage, state)
        if stage in self._windows:
            self._inspect_model(state)

    def _inspect_model(self, state: State) -> None:
        """Outside of batches: find the device's peak and the model's shape."""
        self._compiled = is_compiled(state.model)
        if self._peak is not None:
            return
        self._peak = find_peak(state, self.peak_flops)
        self._model_shape = _shape_of(state.model)
        self._formula_fits_weights = self._model_shape is not None and fits_weights(self._model_shape, state.model)
        name = type(self).__name__
        if self._peak.flops is None:
            warn(
                f'{name} has no peak for a {self._peak.device} at {state.precision.value} and logs no mfu; set '
                'peak_flops'
            )

    # -- windows ------------------------------------------------------------------------------------------------------

    def _start(self, state: State, stamp: Stamp) -> None:
        del stamp  # unused
        trained = sum(parameter.requires_grad for parameter in state.model.parameters())
        if trained != self._trained:  # layers were frozen or unfrozen
            self._trained = trained
            self._shapes = {}
        self._window = WindowFlops()
        self._stopwatch.pause()

    def _batch_begins(self, state: State) -> None:
        stage, shapes = self._stage, shapes_of(state.batch)
        if (stage, shapes) not in self._shapes and len(self._shapes) < _MOST_SHAPES:
            tokens = token_shape(state.batch)
            self._shapes[stage, shapes] = BatchShape(
                shapes,
                tokens,
                self._model_shape,
                training=stage == 'train',
                formula_fits_weights=self._formula_fits_weights,
            )
        self._shape = shape = self._shapes.get((stage, shapes))
        if shape is None:
            self._stopwatch.pause()
            return
        shape.seen += 1
        if shape.flops is not None or self._not_counted:
            self._stopwatch.begin()
            return
        self._stopwatch.pause()
        self._traced = True
        if self._compiled:
            shape.flops = self._count_copy(state)
        elif shape.seen > 1 or not may_compile():
            self._microbatch_size = state.device_train_microbatch_size
            self._recorder = FlopsRecorder(state.model)
            self._recorder.start()

    def _count_copy(self, state: State) -> Optional[BatchFlops]:
        try:
            return count_apart(state.model, state.batch, step_of(self._stage, state))
        except CountError as reason:
            self._not_counted = _NOT_COUNTED.format(reason)
            warn(f'{type(self).__name__}: {self._not_counted}. Batches are still timed')
            return None

    def before_train_batch(self, state: State, logger: Logger) -> None:
        del logger  # unused
        if self._recorder is None:
            return
        if state.device_train_microbatch_size != self._microbatch_size:  # memory ran out; Composer retries
            self._microbatch_size = state.device_train_microbatch_size
            self._recorder.restart()
        self._recorder.begin_batch()

    def after_train_batch(self, state: State, logger: Logger) -> None:
        del state, logger  # unused
        # Composer runs forward and backward inside optimizer.step(); the update itself begins here.
        if self._recorder is not None:
            self._recorder.begin_optimizer()

    def _batch_ended(self, state: State) -> None:
        window, shape = self._window, self._shape
        assert window is not None and self._peak is not None
        recorder, self._recorder = self._recorder, None
        if recorder is not None and shape is not None:
            shape.flops = recorder.stop()
        traced, self._traced = self._traced and shape is not None and shape.flops is not None, False
        if traced and shape is not None:
            shape.traced_at = state.timestamp.batch.value
        window.add(shape, self._stopwatch.end(), traced=traced)
        due = traced or window.all_timed.batches == 1 or window.batches % self.log_every_n_batches == 0
        if shape is not None and due:
            self._log(window.metrics(shape, self._peak.flops), self._stage)

    def _log(self, metrics: dict[str, float], stage: str) -> None:
        if dist.get_global_rank() == 0 and 'batch_flops' in metrics:
            metrics['batch_flops_all_ranks_estimate'] = metrics['batch_flops'] * dist.get_world_size()
        group = self._metric_group('flops', stage)
        named = {f'{group}/{name}': value for name, value in metrics.items()}
        constants = [name for name in named if name.rpartition('/')[2] in _CONSTANT_FOR_A_SHAPE]
        logger = self._logger()
        if logger is not None:
            logger.log_metrics(self._repeats.left_out(named, constants))

    def _stop(self, state: State, stamp: Stamp) -> None:
        window, peak = self._window, self._peak
        self._cancel()  # if the training failed inside a batch
        self._stopwatch.pause()
        assert window is not None and peak is not None
        report = FlopsReport(
            self._stage_head(state),
            dist.get_world_size(),
            window.summary(peak),
            [self._not_counted] if self._not_counted else [],
        )
        suffix = self.output.naming.suffix
        self.store.save(
            [
                Part(self.kind, suffix, lambda path: write_json(report.as_dict(), path), self.output.compress),
                Part(
                    f'{self.kind}.table',
                    suffix.removesuffix('.json') + '.txt',
                    lambda path: write_text(flops_text(report), path),
                ),
            ],
            stamp,
        )

    def _cancel(self) -> None:
        recorder, self._recorder = self._recorder, None
        self._window = None
        if recorder is not None:
            recorder.cancel()


def _shape_of(model: Any) -> Optional[GPTShape]:
    try:
        return find_shape(model)
    except Exception:  # reading a config may run anything
        log_error("the model's shape could not be read")
        return None


def _is_peak(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float('inf')
