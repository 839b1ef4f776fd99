"""FSDPMemTracker: which category of tensors, and which module, holds the memory; sharded or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Optional

from composer.core import State
from composer.loggers import Logger
from composer.utils import dist
from typing_extensions import Unpack

from composer_memprof.analysis.module_memory import ModuleMemorySummary, summary_of_memory
from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.artifacts.store import Part
from composer_memprof.callbacks.framework.base import ProfilingCallback
from composer_memprof.callbacks.framework.options import COMPRESS, SharedParameters, takes_shared_parameters
from composer_memprof.callbacks.framework.rank_sample import FilesOnRanks, parse_files_on_ranks
from composer_memprof.messages import must_be
from composer_memprof.recorders import dispatch
from composer_memprof.recorders.compiled import is_compiled
from composer_memprof.recorders.modules import recorder as modules
from composer_memprof.recorders.modules.blocks import block_depth
from composer_memprof.recorders.modules.model import FSDP1_REFUSAL, check_model, find_root
from composer_memprof.recorders.modules.names import class_name, module_named
from composer_memprof.recorders.modules.recorder import ModuleMemoryRecorder
from composer_memprof.recorders.modules.result import ModuleMemory
from composer_memprof.recorders.modules.whole_parameters import whole_modules
from composer_memprof.report.text.tables.files import write_json, write_text
from composer_memprof.report.text.tables.module_memory import Layout, module_memory_dict, module_memory_text
from composer_memprof.schedule import window

_FUNCTION = '{function}'


@takes_shared_parameters(
    filename='fsdp_mem_rank_{rank}_{function}_{batch}.log',
    docs={
        'filename': 'format string, which may contain ``{function}`` (the stage). The JSON ends in ``.json`` and '
        "``.summary.json`` instead of ``.log``. Default: ``'fsdp_mem_rank_{rank}_{function}_{batch}.log'``.",
        'schedule': "which batches are recorded. Default: ``window('1ba', skip='2ba')``, the third batch: optimizer "
        'state exists from the second on.',
        'compress': f'the log and the JSON: {COMPRESS}. Default: ``False``.',
    },
)
class FSDPMemTracker(ProfilingCallback):
    """Tracks a model's memory by category and by module, at its peak and as each module is entered and left.

    Works for plain, DDP and FSDP2 models, on CPU and GPU; FSDP1 is refused. It is exact although Composer runs forward
    and backward inside ``optimizer.step()``, with any number of microbatches, activation checkpointing and mixed
    precision. Each window writes, on each rank, the tables that torch's trackers print, the same in bytes as JSON, and
    the peaks alone as ``.summary.json``; the peak is logged as ``fsdp_mem/peak/<category>``. Steps inside a window take longer, those outside do not.

    The categories are Parameter, Gradient, Buffer, Activation, Temp (gradients of activations, and the optimizer's
    temporaries), OptState, Inputs, Other. Under FSDP2 the first two become ShardedParam, UnshardedParam, ShardedGrad,
    UnshardedGrad, AllGather and ReduceScatter. Sizes are of storages, before the allocator rounds them up.

    All memory of tensors counts from the window's start: what was there before and has no category of its own is part
    of Other, and is listed by what holds it (an algorithm or a callback, by its class; ``previous outputs``; ``DDP's
    buckets``; ``data``), in the JSON as ``before``. On a GPU ``not_seen`` is what the allocator had handed out beyond
    that. What an operator holds only while it runs, as a convolution's workspace does, is no tensor: on a GPU
    ``not_seen`` has it as ``inside`` where the process's peak lies in the window, on a CPU it is not seen.

    >>> from composer_memprof import FSDPMemTracker
    >>> callback = FSDPMemTracker(depth=3, units='KiB', schedule={'skip': '10ba', 'active': '2ba'})

    Args:
        root_module (str, optional): dotted name of the module whose submodules are told apart. Default: the topmost
            module that FSDP2 shards, else the model.
        depth (int, optional): how many levels of modules are listed with their states; the root module is level 1.
            Default: down to the model's blocks, the layers that repeat; the log then has the states of the first and
            the last block, the JSON those of all.
        units (str): of the log: ``B``, ``KiB``, ``MiB``, ``GiB``. Default: ``'MiB'``.
        tabulate (bool): print the log as tables, otherwise line by line. Default: ``False``.
        files_on_ranks (int | Sequence[int] | dict, optional): the ranks that write the log and the JSON; the others
            write the summary alone. ``[0, -1]`` is the first and the last, ``{'every': 64}`` each 64th,
            ``{'ranks': [0, -1], 'every': 64}`` both. Default: all.
        <shared parameters>

    Raises:
        ValueError: for a parameter or a model that is not allowed, here, when the Trainer is made, or before the
            first batch.
    """

    kind = 'fsdp_mem_tracker'
    torch_needs = {'': modules.NEEDS, 'FSDP2': modules.FSDP2_NEEDS}
    suffix = '.log'
    default_schedule = window('1ba', skip='2ba')

    def __init__(
        self,
        root_module: Optional[str] = None,
        depth: Optional[int] = None,
        units: str = 'MiB',
        tabulate: bool = False,
        files_on_ranks: FilesOnRanks = None,
        **shared: Unpack[SharedParameters],
    ) -> None:
        if root_module is not None and not isinstance(root_module, str):
            raise must_be('root_module', 'the dotted name of a module', root_module)
        self.layout = Layout(1 if depth is None else depth, units, tabulate)
        self.depth = depth
        self._file_ranks = parse_files_on_ranks(files_on_ranks)
        self._writes_files = True
        self._filename = shared['filename']
        shared['filename'] = _for_stage(self._filename, 'train')
        super().__init__(suffix=self.suffix, **shared)
        self.root_module = root_module
        self._recorder: Optional[ModuleMemoryRecorder] = None
        self._memory: Optional[ModuleMemory] = None

    # -- before the first batch -------------------------------------------------------------------------------------

    def _check(self, state: State) -> None:
        self._recorder = self._memory = None
        self._writes_files = self._file_ranks.has_this_rank()
        if state.fsdp_config_version == 1:
            raise ValueError(FSDP1_REFUSAL)
        self._check_model(state)

    def _check_model(self, state: State) -> None:
        check_model(state.model)
        find_root(state.model, self.root_module)
        theirs = dispatch.foreign_tracker()
        if theirs is not None:
            raise ValueError(f'another tracker is active on the model: {theirs}; close it before training begins')

    def fit_start(self, state: State, logger: Logger) -> None:
        is_recorded = 'train' in self.when.stages and self.may_run_on(dist.get_global_rank())
        if is_recorded:
            self._check_model(state)  # as it is now, wrapped and sharded
        super().fit_start(state, logger)
        if is_recorded and is_compiled(state.model):
            self._turn_off(
                'it cannot see the allocations of code compiled by torch.compile; set compile_config=None for a run '
                'that shows the memory'
            )

    # -- windows ----------------------------------------------------------------------------------------------------

    def _start(self, state: State, stamp: Stamp) -> None:
        del stamp  # unused
        if is_compiled(state.model):
            raise RuntimeError('the model is compiled; allocations of code compiled by torch.compile cannot be seen')
        root = module_named(state.model, find_root(state.model, self.root_module))
        depth = block_depth(root) if self.depth is None else self.depth
        recorder = ModuleMemoryRecorder(state.model, state.optimizers, self.root_module, depth, lambda: _holders(state))
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
        head, unsharded = self._stage_head(state), whole_modules(recorder.model)
        model = class_name(module_named(recorder.model, recorder.root_name))
        layout = self.layout
        if self.depth is None and recorder.depth is not None:
            layout = replace(layout, depth=recorder.depth, first_and_last=True)
        naming = replace(self.output.naming, filename=_for_stage(self._filename, self._stage))
        whole = [
            Part(
                self.kind,
                self.suffix,
                lambda path: write_text(module_memory_text(memory, model, layout), path),
                self.output.compress,
                naming,
            ),
            Part(
                f'{self.kind}.json',
                '.json',
                lambda path: write_json(module_memory_dict(head, memory), path),
                self.output.compress,
                naming,
            ),
        ]
        summary = Part(
            f'{self.kind}.summary',
            '.summary.json',
            lambda path: write_json({**head.as_dict(), **_summary(memory, unsharded).as_dict()}, path),
            naming=naming,
        )
        self.store.save([*whole, summary] if self._writes_files else [summary], stamp)

    def _cancel(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.cancel()

    def _log(self, state: State, logger: Logger) -> None:
        """Log the peak of a window that was just closed, on the model's device."""
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
        del state, logger  # unused
        # Composer runs forward and backward inside optimizer.step(); the update itself begins here.
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


def _holders(state: State) -> dict[str, Any]:
    """What else may hold tensors when a window begins, by the names under which the files list it."""
    holders: dict[str, Any] = {'previous outputs': (state.outputs, state.loss), 'metrics': state.train_metrics}
    for each in (*state.algorithms, *state.callbacks):
        holders.setdefault(type(each).__name__, each)
    holders['data'] = (state.train_dataloader, state.dataloader)
    return holders


def _summary(memory: ModuleMemory, whole: Mapping[str, int]) -> ModuleMemorySummary:
    activations = ((module.name, module.own_activation_bytes) for module in memory.modules)
    return summary_of_memory(memory.peak, memory.phases, activations, memory.outside_activation_bytes, whole)


def _for_stage(filename: Any, stage: str) -> Any:
    """``filename`` with ``{function}`` replaced; anything but a string is left for the check to refuse."""
    return filename.replace(_FUNCTION, stage) if isinstance(filename, str) else filename
