"""MemProfiler: host and device memory, saved tensors and trackers at the start and end of functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Optional, Union

import torch
from composer.core import Event, State
from composer.loggers import Logger
from composer.utils import dist
from typing_extensions import Unpack

from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.callbacks.framework.options import COMPRESS, SharedParameters, takes_shared_parameters
from composer_memprof.callbacks.framework.windows import exclusive
from composer_memprof.callbacks.mem_profiler.functions import FUNCTIONS, STEPS, FunctionCallback
from composer_memprof.callbacks.mem_profiler.memory_stats import JSON_LINES, PICKLE, YAML, MemoryStats
from composer_memprof.callbacks.mem_profiler.without_trainer import WithoutTrainer
from composer_memprof.messages import check_switches
from composer_memprof.recorders.functions.marked import memprofilable
from composer_memprof.recorders.functions.plan import NEEDS, FunctionPlan, Hooks, select_hooks
from composer_memprof.recorders.functions.selection import Functions, select_calls, select_functions
from composer_memprof.recorders.saved_tensors.pack_functions import FunctionOrPath, resolve_functions
from composer_memprof.report.text.tables.module_memory import Layout
from composer_memprof.schedule.constant import ALWAYS

_LAYOUT = ('fsdp_mem_track_module_depth', 'fsdp_mem_tracker_units', 'fsdp_mem_tracker_tabulate')


@takes_shared_parameters(
    folder=None,
    filename='rank_{rank}_memory_stats.yaml',
    docs={
        'folder': "format string over run variables. Default: ``save_dir``, else ``'{run_name}/memprof'``.",
        'schedule': 'windows in which all calls are read, each with files of its own; or '
        '``{warmup_iters: 1, max_iter: 2}``. Default: one window, with ``warmup_iters`` and ``max_iter``.',
        'compress': f'the files: {COMPRESS}. Default: ``False``.',
    },
)
class MemProfiler(FunctionCallback, WithoutTrainer):
    """Reads memory at the start and the end of functions: the batch, its phases, and what ``@memprofilable`` marks.

    It reads host memory, ``torch.cuda.memory_stats()``, what autograd saves, and on request the allocator's history
    and memory by category and module. One file a rank has the readings, with finetuning-scheduler's keys
    ``rank.function.iteration.start`` and ``.end``. It exists from the first reading on and survives a crash.

    Functions are ``training_step`` (a batch), ``dataloader``, ``forward``, ``loss``, ``backward`` (once a microbatch),
    ``optimizer_step``, ``validation_step``, ``predict_step``, and the marked ones, by name.

    Of what autograd saves, ``npp_diff`` counts the last forward pass in the call, every save of a tensor that is no
    parameter, as finetuning-scheduler does. ``packed_bytes_diff`` counts the same over the whole call, and
    ``saved_bytes_diff`` counts each storage once.

    >>> from composer_memprof import MemProfiler
    >>> callback = MemProfiler(collect_funcs={'default': ['training_step'], 'cpu': ['forward']}, max_iter=3)

    In a loop without a Trainer: ``with MemProfiler().connect(model) as profiler``, and in it
    ``with profiler.memprofile_ctx('training_step')``.

    Args:
        enabled (bool): ``False`` does nothing at all. Default: ``True``.
        collect_funcs (Mapping | Sequence, optional): functions by kind, of ``default`` (every kind), ``cpu``, ``cuda``,
            ``cuda_allocator_history``, ``fsdp``, ``saved_tensors``; or functions of every kind. Default: the steps of
            ``stages``, and all marked functions.
        warmup_iters (int, optional): first calls of each function that are not read. Default: ``1``, with a schedule
            ``0``.
        max_iter (int, optional): the last call of each function that is read. Default: the one after the warm-up;
            with a schedule no limit.
        cuda_allocator_history (bool): save it at each start and end. It begins when this object is made, or once CUDA
            is in use; with a schedule, in each window. Default: ``False``.
        track_fsdp_mem (bool): memory by category and module, with or without FSDP2. Default: ``False``.
        fsdp_mem_track_module_depth, fsdp_mem_tracker_tabulate, fsdp_mem_tracker_units, fsdp_mem_tracker_root_module:
            as ``depth``, ``tabulate``, ``units`` and ``root_module`` of :class:`FSDPMemTracker`.
        dump_memorystats_yaml, dump_memorystats_pickle, dump_memorystats_jsonl (bool): which files are written; the
            pickle is written at the window's end. Default: the YAML alone.
        enable_memory_hooks (bool): read memory around the model's forward. Default: ``True``.
        enable_saved_tensors_hooks (bool): count what autograd saves. Default: ``True``.
        memory_hooks (Mapping, optional): your ``pre_forward_hooks``, ``post_forward_hooks`` and
            ``reset_state_hooks``, as functions or dotted paths, for every module. Default: ours, on the model alone.
        saved_tensors_funcs (Sequence, optional): pack and unpack; see :class:`SavedTensorsHook`.
        save_hook_attrs (Sequence[str], optional): attributes of the model that hooks set and that are read. Default:
            as in finetuning-scheduler, ``rss_diff`` and others.
        retain_hooks_for_funcs (Sequence[str], optional): hooks are removed once each of these was read. Default: all
            named functions.
        save_dir (str, optional): another name for ``folder``.
        <shared parameters>

    Attributes:
        memory_stats (dict): values by key, of all windows so far.
        fsdp_memory_stats (dict): bytes at the peak by category and device, for each (function, iteration).

    Raises:
        ValueError: for a parameter or a model that is not allowed, before the first batch.
    """

    kind = 'mem_profiler'
    torch_needs = NEEDS
    suffix = YAML
    default_schedule = ALWAYS
    grows_in_memory = False
    memprofilable = staticmethod(memprofilable)

    def __init__(
        self,
        enabled: bool = True,
        collect_funcs: Union[Mapping[str, Functions], Functions, None] = None,
        warmup_iters: Optional[int] = None,
        max_iter: Optional[int] = None,
        cuda_allocator_history: bool = False,
        track_fsdp_mem: bool = False,
        fsdp_mem_track_module_depth: int = 2,
        fsdp_mem_tracker_tabulate: bool = False,
        fsdp_mem_tracker_units: str = 'MiB',
        fsdp_mem_tracker_root_module: str = '',
        dump_memorystats_yaml: bool = True,
        dump_memorystats_pickle: bool = False,
        dump_memorystats_jsonl: bool = False,
        enable_memory_hooks: bool = True,
        enable_saved_tensors_hooks: bool = True,
        memory_hooks: Optional[Hooks] = None,
        saved_tensors_funcs: Optional[Sequence[FunctionOrPath]] = None,
        save_hook_attrs: Optional[Sequence[str]] = None,
        retain_hooks_for_funcs: Optional[Functions] = None,
        save_dir: Optional[str] = None,
        **shared: Unpack[SharedParameters],
    ) -> None:
        check_switches(
            enabled=enabled,
            cuda_allocator_history=cuda_allocator_history,
            track_fsdp_mem=track_fsdp_mem,
            dump_memorystats_yaml=dump_memorystats_yaml,
            dump_memorystats_pickle=dump_memorystats_pickle,
            dump_memorystats_jsonl=dump_memorystats_jsonl,
            enable_memory_hooks=enable_memory_hooks,
            enable_saved_tensors_hooks=enable_saved_tensors_hooks,
        )
        folder = shared['folder']
        if save_dir == '' or (folder is not None and save_dir not in (None, folder)):
            raise ValueError(f'save_dir={save_dir!r} with folder={folder!r} is not allowed; give one of them')
        shared['folder'] = folder or save_dir or '{run_name}/memprof'
        shared['schedule'], warmup, last = select_calls(shared['schedule'], warmup_iters, max_iter)
        hooks, attributes = select_hooks(memory_hooks, save_hook_attrs, enable_memory_hooks)
        super().__init__(suffix=self.suffix, **shared)
        steps = [step for stage, step in STEPS.items() if stage in self.when.stages]
        self.enabled = enabled
        self._plan = FunctionPlan(
            select_functions(collect_funcs, retain_hooks_for_funcs, steps, warmup, last),
            saved_tensors=enable_saved_tensors_hooks,
            pack_functions=resolve_functions(saved_tensors_funcs),
            hooks=hooks,
            attributes=attributes,
            history=cuda_allocator_history,
            module_memory=track_fsdp_mem,
            root_module=fsdp_mem_tracker_root_module or None,
            depth=fsdp_mem_track_module_depth,
        )
        formats = {
            YAML: dump_memorystats_yaml,
            JSON_LINES: dump_memorystats_jsonl,
            PICKLE: dump_memorystats_pickle,
        }
        layout = Layout(fsdp_mem_track_module_depth, fsdp_mem_tracker_units, fsdp_mem_tracker_tabulate, _LAYOUT)
        self._stats = MemoryStats(
            self.kind, [name for name, wanted in formats.items() if wanted], self.output.compress, layout
        )
        self.memory_stats = self._stats.readings
        self.fsdp_memory_stats = self._stats.peaks
        if cuda_allocator_history and torch.cuda.is_available():
            self.resources = frozenset({exclusive.ALLOCATOR_HISTORY})
        self._early = self._plan.early_history() if enabled and self.may_run_on(dist.get_global_rank()) else None
        if self._early is not None:
            self._early.begin()  # as soon as here, so that the model's move to the device is in it

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        if self.enabled:
            super().run_event(event, state, logger)

    def _torch_needs(self, state: State) -> tuple[ModuleType, ...]:
        del state  # unused
        return self._plan.torch_needs()

    def _check(self, state: State) -> None:
        if self._early is not None and exclusive.claim_if_free(self, self.session, state):
            self._early.begin()
        elif self._early is not None:
            self._early.cancel()

    def yield_resources(self) -> bool:
        if self.is_recording or self._early is None or not self._early.is_wanted:
            return False
        try:
            self._early.cancel()
        finally:
            exclusive.release(self, self.session)
        return True

    def fit_start(self, state: State, logger: Logger) -> None:
        self._plan.check(state.model, state.fsdp_config_version)
        super().fit_start(state, logger)
        self._listen(self._make_recorder(state.model, state.optimizers, FUNCTIONS))

    def close(self, state: State, logger: Logger) -> None:
        super().close(state, logger)
        self._listen(None)

    def _start(self, state: State, stamp: Stamp) -> None:
        super()._start(state, stamp)
        if self._functions is None:  # evaluation or prediction alone
            self._listen(self._make_recorder(state.model, state.optimizers, FUNCTIONS))
        self._begin_window(stamp)

    def _stop(self, state: State, stamp: Stamp) -> None:
        self._end_window()

    def _cancel(self) -> None:
        self._end_window()
