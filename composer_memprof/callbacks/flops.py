"""Flops: the floating-point operations of a batch, and how much of the device they put to use."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping
from typing import Any, Optional

from composer.core import State
from composer.loggers import Logger
from composer.utils import dist

from composer_memprof.analysis.flops.gpt_formula import GPTShape, find_shape
from composer_memprof.analysis.flops.summary import DevicePeak
from composer_memprof.analysis.flops.utilization import BatchShape, WindowFlops
from composer_memprof.artifacts.names import Naming, Stamp
from composer_memprof.artifacts.store import Part
from composer_memprof.callbacks.framework.base import Output, ProfilingCallback, Ranks, Stages, when
from composer_memprof.callbacks.parts.device_peak import find_peak
from composer_memprof.messages import warn
from composer_memprof.recorders.batch_shape import shapes_of, token_shape
from composer_memprof.recorders.compiled import is_compiled, may_compile
from composer_memprof.recorders.flops.recorder import FlopsRecorder
from composer_memprof.recorders.stopwatch import Stopwatch
from composer_memprof.report.text.files import write_json, write_text
from composer_memprof.report.text.flops import FlopsReport, flops_text
from composer_memprof.report.text.head import StageHead
from composer_memprof.schedule import ALWAYS, ScheduleInput

_SUFFIX = '.flops.json'
#: Shapes of batches that are counted, each once; batches of further shapes are left out.
_MOST_SHAPES = 64
_COMPILED = 'torch.compile hides what the model computes, so that nothing is counted; set compile_config=None to count'


class Flops(ProfilingCallback):
    """Counts the FLOPs of a batch by tracing it, and logs the share of the device's peak that training reaches.

    The first batch of each shape is traced, all its microbatches: torch's own formulas, with ours where it has none,
    by module and operation, forward and backward; operators without a formula are named and counted. That batch is
    slower, and all others are timed, from one end to the next, without evaluations. Model FLOPs (``batch_flops``,
    ``mfu``) leave out what is computed twice, by checkpoints and by attention that keeps no scores; hardware FLOPs
    (``hardware_flops``, ``hfu``) have it. A product's multiplication and addition count as two, causal attention in
    full, element-wise operators not at all. Beside it stands the formula for GPT-style models, where the model's
    attributes or config (``n_layers``, ``hidden_size``, …) give its shape.

    Logged by each rank, as ``flops/…``: ``mfu, batch_flops, total_flops`` (what the device can do in a second),
    ``actual_batches_per_sec, max_batches_per_sec, batch_flops_from_formula, mfu_from_formula, tracked_operations,
    untracked_operations`` (calls); by rank 0 also ``batch_flops_all_ranks_estimate``, its own times the world size.
    Where several stages are counted, those of ``eval`` and ``predict`` as ``flops/eval/…``. Each window leaves
    ``.json`` and the same in short as ``.txt``; an evaluation that is counted ends training's window, and training
    goes on in another.

    A model that ``torch.compile`` was used on, if only on a part, is timed, but not traced. Where functions are
    compiled, a shape's first batch is left to the compiler and the second is traced.

    >>> from composer_memprof import Flops
    >>> callback = Flops(log_every_n_batches=10, stages=['train', 'eval'])

    Args:
        log_every_n_batches (int): of a window; the traced batch and the first timed one are logged too.
            Default: ``5``.
        peak_flops (float, optional): FLOPs a second that one device can do. Default: from Composer's table of GPUs
            for the run's precision; on a CPU the measured rate of matrix products.
        folder (str): format string over run variables. Default: ``'{run_name}/memprof'``.
        filename (str): format string. Default: ``'rank{rank}.{batch}.flops.json'``.
        remote_file_name (str, optional): format string, with ``s3://`` or the like to that store, otherwise through
            Composer's logger. A folder without ``{batch}``, else a prefix. Default: ``None``, uploads nothing.
        overwrite (bool): replace files of the same name; otherwise they take ``.2``, … Default: ``False``.
        schedule (Schedule | dict | Callable, optional): Default: always, one window as long as the run. A shape that
            an earlier window has traced is timed at once.
        storage_options (dict, optional): for the store, beside the environment and fsspec's config.
        num_artifacts_to_keep (int): windows kept on this disk, once uploaded; -1 keeps all. Default: ``-1``.
        ranks (Sequence[int], optional): which ranks record. Default: all.
        stages (Sequence[str]): of ``train``, ``eval``, ``predict``. Default: ``('train',)``.
        compress (bool): gzip the JSON. Default: ``False``.
        close_timeout (float): seconds that the close waits for uploads. Default: ``20``.

    Raises:
        ValueError: for a parameter that is not allowed, here or when the Trainer is made.
    """

    kind = 'flops'

    def __init__(
        self,
        log_every_n_batches: int = 5,
        peak_flops: Optional[float] = None,
        folder: str = '{run_name}/memprof',
        filename: str = 'rank{rank}.{batch}.flops.json',
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
        if not isinstance(log_every_n_batches, int) or isinstance(log_every_n_batches, bool) or log_every_n_batches < 1:
            raise ValueError(
                f'log_every_n_batches={log_every_n_batches!r} is not allowed; it is a number of batches, from 1'
            )
        if peak_flops is not None and not _is_peak(peak_flops):
            raise ValueError(f'peak_flops={peak_flops!r} is not allowed; it is FLOPs a second, above 0, as 312e12')
        super().__init__(
            when(schedule, ALWAYS, ranks, stages),
            Output(
                folder=folder,
                naming=Naming(filename, remote_file_name, _SUFFIX if filename.endswith(_SUFFIX) else '.json'),
                storage_options=storage_options,
                overwrite=overwrite,
                num_artifacts_to_keep=num_artifacts_to_keep,
                compress=compress,
                close_timeout=close_timeout,
            ),
        )
        self.log_every_n_batches = log_every_n_batches
        self.peak_flops = peak_flops
        self._forget_model()

    def _forget_model(self) -> None:
        self._peak: Optional[DevicePeak] = None
        self._model_shape: Optional[GPTShape] = None
        self._compiled = False
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
            self._look_at(state)

    def _start_pass(self, stage: str, state: State) -> None:
        self._stopwatch.pause()
        if self._recording is not None and self._recording.stage != stage and stage in self.when.stages:
            self._finish(state)
        super()._start_pass(stage, state)
        if stage in self._windows:
            self._look_at(state)

    def _look_at(self, state: State) -> None:
        """Outside of all batches: what the device can do, what the model is."""
        self._compiled = is_compiled(state.model)
        if self._peak is not None:
            return
        self._peak = find_peak(state, self.peak_flops)
        self._model_shape = _shape_of(state.model)
        name = type(self).__name__
        if self._peak.flops is None:
            warn(
                f'{name} knows no peak of a {self._peak.device} at {state.precision.value}, so that it logs no mfu; '
                'give peak_flops'
            )
        if self._compiled:
            warn(f'{name}: {_COMPILED}. Batches are timed all the same')

    # -- windows ------------------------------------------------------------------------------------------------------

    def _start(self, state: State, stamp: Stamp) -> None:
        del stamp  # unused
        trained = sum(parameter.requires_grad for parameter in state.model.parameters())
        if trained != self._trained:  # layers were frozen, or no longer are
            self._trained = trained
            self._shapes = {}
        self._window = WindowFlops()
        self._stopwatch.pause()

    def _batch_begins(self, state: State) -> None:
        assert self._recording is not None
        stage, shapes = self._recording.stage, shapes_of(state.batch)
        if (stage, shapes) not in self._shapes and len(self._shapes) < _MOST_SHAPES:
            tokens = token_shape(state.batch)
            self._shapes[stage, shapes] = BatchShape(shapes, tokens, self._model_shape, training=stage == 'train')
        self._shape = shape = self._shapes.get((stage, shapes))
        if shape is None:
            self._stopwatch.pause()
            return
        shape.seen += 1
        if shape.flops is not None or self._compiled:
            self._stopwatch.begin()
            return
        self._stopwatch.pause()
        if shape.seen > 1 or not may_compile():
            self._microbatch_size = state.device_train_microbatch_size
            self._recorder = FlopsRecorder(state.model)
            self._recorder.start()

    def before_train_batch(self, state: State, logger: Logger) -> None:
        del logger  # unused
        if self._recorder is None:
            return
        if state.device_train_microbatch_size != self._microbatch_size:  # memory ran out, and it is tried once more
            self._microbatch_size = state.device_train_microbatch_size
            self._recorder.restart()
        self._recorder.begin_batch()

    def after_train_batch(self, state: State, logger: Logger) -> None:
        # Composer runs forward and backward inside of the optimizer's step; its own part begins here.
        del state, logger  # unused
        if self._recorder is not None:
            self._recorder.begin_optimizer()

    def _batch_ended(self, state: State) -> None:
        window, shape = self._window, self._shape
        assert window is not None and self._recording is not None and self._peak is not None
        recorder, self._recorder = self._recorder, None
        if recorder is not None and shape is not None:
            shape.flops = recorder.stop()
            shape.traced_at = state.timestamp.batch.value
        window.add(shape, self._stopwatch.end(), traced=recorder is not None)
        due = recorder is not None or window.all_timed.batches == 1 or window.batches % self.log_every_n_batches == 0
        if shape is not None and due:
            self._log(window.metrics(shape, self._peak.flops), self._recording.stage)

    def _log(self, metrics: dict[str, float], stage: str) -> None:
        if dist.get_global_rank() == 0 and 'batch_flops' in metrics:
            metrics['batch_flops_all_ranks_estimate'] = metrics['batch_flops'] * dist.get_world_size()
        prefix = 'flops' if stage == 'train' or len(self.when.stages) == 1 else f'flops/{stage}'
        logger = self._logger()
        if logger is not None:
            logger.log_metrics({f'{prefix}/{name}': value for name, value in metrics.items()})

    def _stop(self, state: State, stamp: Stamp) -> None:
        window, peak = self._window, self._peak
        self._cancel()  # where the training broke off inside of a batch
        self._stopwatch.pause()
        assert window is not None and peak is not None
        stage = stamp.mark.strip('.').rstrip('0123456789') or 'train'
        timestamp = state.timestamp
        report = FlopsReport(
            StageHead(dist.get_global_rank(), timestamp.epoch.value, timestamp.batch.value, stage),
            dist.get_world_size(),
            window.summary(peak),
            [_COMPILED] if self._compiled else [],
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
    except Exception:  # whatever someone's config does when it is read
        return None


def _is_peak(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float('inf')
