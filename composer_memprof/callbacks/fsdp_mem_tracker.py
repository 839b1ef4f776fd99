"""FSDPMemTracker: which category of tensors, and which module, holds the memory; sharded or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Optional

from composer.core import State
from composer.loggers import Logger
from composer.utils import dist

from composer_memprof.artifacts.names import Naming, Stamp
from composer_memprof.artifacts.store import Part
from composer_memprof.callbacks.framework.base import Output, ProfilingCallback, Ranks, Stages, when
from composer_memprof.messages import warn
from composer_memprof.recorders import dispatch
from composer_memprof.recorders.compiled import is_compiled
from composer_memprof.recorders.modules.model import FSDP1_REFUSAL, check_model, find_root
from composer_memprof.recorders.modules.recorder import ModuleMemoryRecorder
from composer_memprof.recorders.modules.result import ModuleMemory
from composer_memprof.report.text.module_memory import Layout, write_json, write_log
from composer_memprof.schedule import ScheduleInput, window

_SUFFIX = '.log'
_FUNCTION = '{function}'
#: The optimizer's state is there from the second batch on.
_DEFAULT_SCHEDULE = window('1ba', skip='2ba')


class FSDPMemTracker(ProfilingCallback):
    """Tracks a model's memory by category and by module, at its peak and as each module is entered and left.

    For plain, DDP and FSDP2 models, on CPU and GPU; FSDP1 is refused. Right where forward and backward run inside of
    the optimizer's step, as Composer has it, for any number of microbatches, with activation checkpointing and mixed
    precision. Each window leaves the tables that torch's trackers print, and the same in bytes as JSON, on each rank;
    the peak is logged as ``fsdp_mem/peak/<category>``. Steps in a window take longer, those outside do not.

    The categories are Parameter, Gradient, Buffer, Activation, Temp (gradients of activations, and what the optimizer
    makes and drops), OptState, Inputs, Other; under FSDP2 ShardedParam, UnshardedParam, ShardedGrad, UnshardedGrad,
    AllGather and ReduceScatter in place of the first two. Sizes are of storages, before the allocator rounds them.

    >>> from composer_memprof import FSDPMemTracker
    >>> callback = FSDPMemTracker(depth=3, units='KiB', schedule={'skip': '10ba', 'active': '2ba'})

    Args:
        root_module (str, optional): dotted name in the model of the module whose submodules are told apart. Default:
            found by itself: the topmost that FSDP2 shards, else the model.
        depth (int): how many levels of modules get their states listed, the root module being 1. Default: ``2``.
        units (str): of the log: ``B``, ``KiB``, ``MiB``, ``GiB``. Default: ``'MiB'``.
        tabulate (bool): the log as tables, otherwise line by line. Default: ``False``.
        folder (str): format string over run variables. Default: ``'{run_name}/memprof'``.
        filename (str): format string, which may have ``{function}`` (the stage). The JSON has ``.json`` for ``.log``.
            Default: ``'fsdp_mem_rank_{rank}_{function}_{batch}.log'``.
        remote_file_name (str, optional): format string, with ``s3://`` or the like to that store, otherwise through
            Composer's logger. A folder without ``{batch}``, else a prefix. Default: ``None``, uploads nothing.
        overwrite (bool): replace files of the same name; otherwise they take ``.2``, … Default: ``False``.
        schedule (Schedule | dict | Callable, optional): Default: ``window('1ba', skip='2ba')``, the third batch.
        storage_options (dict, optional): for the store, beside the environment and fsspec's config.
        num_artifacts_to_keep (int): windows kept on this disk, once uploaded; -1 keeps all. Default: ``-1``.
        ranks (Sequence[int], optional): which ranks record. Default: all.
        stages (Sequence[str]): of ``train``, ``eval``, ``predict``. Default: ``('train',)``.
        compress (bool): gzip both files. Default: ``False``.
        close_timeout (float): seconds that the close waits for uploads. Default: ``20``.

    Raises:
        ValueError: for a parameter or a model that is not allowed, here, when the Trainer is made, or before the
            first batch.
    """

    kind = 'fsdp_mem_tracker'

    def __init__(
        self,
        root_module: Optional[str] = None,
        depth: int = 2,
        units: str = 'MiB',
        tabulate: bool = False,
        folder: str = '{run_name}/memprof',
        filename: str = 'fsdp_mem_rank_{rank}_{function}_{batch}.log',
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
        if root_module is not None and not isinstance(root_module, str):
            raise ValueError(f'root_module={root_module!r} is not allowed; it is the dotted name of a module')
        self.layout = Layout(depth, units, tabulate)
        self._filename = filename
        super().__init__(
            when(schedule, _DEFAULT_SCHEDULE, ranks, stages),
            Output(
                folder=folder,
                naming=Naming(_for_stage(filename, 'train'), remote_file_name, _SUFFIX),
                storage_options=storage_options,
                overwrite=overwrite,
                num_artifacts_to_keep=num_artifacts_to_keep,
                compress=compress,
                close_timeout=close_timeout,
            ),
        )
        self.root_module = root_module
        self._recorder: Optional[ModuleMemoryRecorder] = None
        self._memory: Optional[ModuleMemory] = None

    # -- before the first batch -------------------------------------------------------------------------------------

    def _check(self, state: State) -> None:
        self._recorder = self._memory = None
        if state.fsdp_config_version == 1:
            raise ValueError(FSDP1_REFUSAL)
        self._check_model(state)

    def _check_model(self, state: State) -> None:
        check_model(state.model)
        find_root(state.model, self.root_module)
        theirs = dispatch.foreign_tracker()
        if theirs is not None:
            raise ValueError(f'another tracker is active on the model, {theirs}; leave it before training begins')

    def fit_start(self, state: State, logger: Logger) -> None:
        if 'train' in self.when.stages and self.may_run_on(dist.get_global_rank()):
            self._check_model(state)  # as it is now, wrapped and sharded
            if is_compiled(state.model):
                warn(
                    f'{type(self).__name__} records nothing, because torch.compile allocates where nothing sees it; '
                    'set compile_config=None for a run that shows the memory'
                )
                self._stepped_aside = True
        super().fit_start(state, logger)

    # -- windows ----------------------------------------------------------------------------------------------------

    def _start(self, state: State, stamp: Stamp) -> None:
        del stamp  # unused
        if is_compiled(state.model):
            raise RuntimeError('the model is compiled, and torch.compile allocates where nothing sees it')
        recorder = ModuleMemoryRecorder(state.model, state.optimizers, self.root_module, self.layout.depth)
        recorder.start()
        recorder.end_batch()
        self._recorder = recorder

    def _batch_begins(self, state: State) -> None:
        if self._recorder is not None:
            self._recorder.track_inputs(state.batch)

    def _batch_ended(self, state: State) -> None:
        del state  # unused
        if self._recorder is not None:
            self._recorder.end_batch()
            if self._recorder.error is not None:
                raise self._recorder.error

    def _stop(self, state: State, stamp: Stamp) -> None:
        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        memory = self._memory = recorder.stop()
        stage = stamp.mark.strip('.').rstrip('0123456789') or 'train'
        head = {
            'rank': dist.get_global_rank(),
            'epoch': int(stamp.timestamp.epoch),
            'batch': int(stamp.timestamp.batch),
            'stage': stage,
        }
        model = type(recorder.model.get_submodule(recorder.root_name)).__name__
        naming = replace(self.output.naming, filename=_for_stage(self._filename, stage))
        self.store.save(
            [
                Part(
                    self.kind,
                    _SUFFIX,
                    lambda path: write_log(memory, path, model=model, layout=self.layout),
                    self.output.compress,
                    naming,
                ),
                Part(
                    f'{self.kind}.json',
                    '.json',
                    lambda path: write_json(memory, path, **head),
                    self.output.compress,
                    naming,
                ),
            ],
            stamp,
        )

    def _cancel(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.cancel()

    def _log(self, state: State, logger: Logger) -> None:
        """The peak of a window that has just been closed, of the device that the model is on."""
        memory, self._memory = self._memory, None
        if memory is not None:
            device = str(next(state.model.parameters()).device)
            sizes = memory.peak.get(device) or max(memory.peak.values(), key=lambda sizes: sizes['Total'])
            logger.log_metrics({f'fsdp_mem/peak/{category}': size for category, size in sizes.items()})

    # -- phases -----------------------------------------------------------------------------------------------------

    def before_train_batch(self, state: State, logger: Logger) -> None:
        del logger  # unused
        if self._recorder is not None:
            self._recorder.begin_batch(state.batch)

    def before_forward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        if self._recorder is not None:
            self._recorder.begin_batch(state.batch)

    def after_backward(self, state: State, logger: Logger) -> None:
        del state, logger  # unused
        if self._recorder is not None:
            self._recorder.end_backward()

    def after_train_batch(self, state: State, logger: Logger) -> None:
        # Composer runs forward and backward inside of the optimizer's step; its own part begins here.
        del state, logger  # unused
        if self._recorder is not None:
            self._recorder.begin_optimizer()

    def batch_end(self, state: State, logger: Logger) -> None:
        super().batch_end(state, logger)
        self._log(state, logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        super().fit_end(state, logger)
        self._log(state, logger)

    def eval_before_forward(self, state: State, logger: Logger) -> None:
        self.before_forward(state, logger)

    def eval_after_forward(self, state: State, logger: Logger) -> None:
        del state, logger  # unused
        if self._recorder is not None:
            self._recorder.end_batch()

    def eval_end(self, state: State, logger: Logger) -> None:
        super().eval_end(state, logger)
        self._log(state, logger)

    def predict_before_forward(self, state: State, logger: Logger) -> None:
        self.before_forward(state, logger)

    def predict_after_forward(self, state: State, logger: Logger) -> None:
        del state, logger  # unused
        if self._recorder is not None:
            self._recorder.end_batch()

    def predict_end(self, state: State, logger: Logger) -> None:
        super().predict_end(state, logger)
        self._log(state, logger)


def _for_stage(filename: Any, stage: str) -> Any:
    """``filename`` with its function filled in; anything but a text is left for the check to refuse."""
    return filename.replace(_FUNCTION, stage) if isinstance(filename, str) else filename
