"""MemProfiler's parameters on what to read, and the sources that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Optional, Union

import torch
from torch import nn

from composer_memprof.messages import allowed_are, must_be, warn
from composer_memprof.recorders import compiled
from composer_memprof.recorders.allocations import allocator_history
from composer_memprof.recorders.allocations.allocator_history import AllocatorHistory
from composer_memprof.recorders.functions.early_history import EarlyHistory
from composer_memprof.recorders.functions.hook_sources import RootHooksSource, UserHooksSource
from composer_memprof.recorders.functions.selection import HISTORY, HOOKS, Selection
from composer_memprof.recorders.functions.source import FunctionCall, Source
from composer_memprof.recorders.functions.sources import (
    AllocatorHistorySource,
    CudaSource,
    HostSource,
    ModuleMemorySource,
    SavedTensorsSource,
)
from composer_memprof.recorders.modules import recorder as modules
from composer_memprof.recorders.modules.model import FSDP1_REFUSAL, check_model, find_root
from composer_memprof.recorders.modules.names import class_name, module_named
from composer_memprof.recorders.modules.recorder import ModuleMemoryRecorder
from composer_memprof.recorders.modules.result import ModuleMemory
from composer_memprof.recorders.saved_tensors import recorder as saved_tensors
from composer_memprof.recorders.saved_tensors.pack_functions import Function, FunctionOrPath, resolve_function
from composer_memprof.recorders.saved_tensors.recorder import check_has_parameters

#: The modules of ``torch_private`` that the sources need, by what asks for them; ``''`` for always.
NEEDS: Mapping[str, tuple[ModuleType, ...]] = {
    '': compiled.NEEDS,
    'saved tensors': saved_tensors.NEEDS,
    'track_fsdp_mem': modules.NEEDS,
    'cuda_allocator_history': allocator_history.NEEDS,
}

#: The user's hooks, by name in ``_HOOK_NAMES``.
Hooks = Mapping[str, Sequence[FunctionOrPath]]

_HOOK_NAMES = ('pre_forward_hooks', 'post_forward_hooks', 'reset_state_hooks')
#: What finetuning-scheduler's own hooks set on the model. Ours return the same values and set nothing.
_ATTRIBUTES = ('rss_pre_forward', 'rss_post_forward', 'rss_diff', 'npp_pre_forward', 'npp_post_forward', 'npp_diff')
_HISTORY_ENTRIES = 100_000


@dataclass(frozen=True)
class FunctionPlan:
    """Which sources MemProfiler has.

    Args:
        selection (Selection): functions by kind of source, and which of their calls.
        saved_tensors (bool): read what autograd saves.
        pack_functions (tuple, optional): the user's pack and unpack functions.
        hooks (Mapping, optional): the user's hooks around the forward, by ``_HOOK_NAMES``. None: ours.
        attributes (Sequence[str]): names of the hooks' values to read. Empty: no hooks.
        history (bool): record the allocator's history.
        module_memory (bool): record memory by category and module.
        root_module (str, optional): dotted name of the module whose submodules are listed.
        depth (int): levels of modules whose states are recorded.

    Raises:
        ValueError: if functions are named for a kind that is switched off, or ``root_module`` is no string.
    """

    selection: Selection
    saved_tensors: bool
    pack_functions: Optional[tuple[Function, Function]]
    hooks: Optional[Mapping[str, Sequence[Function]]]
    attributes: Sequence[str]
    history: bool
    module_memory: bool
    root_module: Optional[str]
    depth: int

    def __post_init__(self) -> None:
        switches = {
            'saved_tensors': (self.saved_tensors, 'enable_saved_tensors_hooks=True'),
            'fsdp': (self.module_memory, 'track_fsdp_mem=True'),
            HISTORY: (self.history, 'cuda_allocator_history=True'),
        }
        for kind, (is_on, switch) in switches.items():
            if kind in self.selection.own and not is_on:
                raise ValueError(f'collect_funcs.{kind} is given, but {kind} is off; set {switch}')
        if self.root_module is not None and not isinstance(self.root_module, str):
            raise must_be('fsdp_mem_tracker_root_module', 'the dotted name of a module', self.root_module)

    def early_history(self) -> Optional[EarlyHistory]:
        """The allocator's history for before the first call; None if it is not recorded, or in windows alone."""
        if not self.history or self.selection.last is None or not torch.cuda.is_available():
            return None
        return EarlyHistory(AllocatorHistory(_HISTORY_ENTRIES))

    def torch_needs(self) -> tuple[ModuleType, ...]:
        """The modules of ``torch_private`` that its sources need."""
        needs = NEEDS['']
        if self.saved_tensors or self.attributes:
            needs += NEEDS['saved tensors']
        if self.module_memory:
            needs += NEEDS['track_fsdp_mem']
        if self.history and torch.cuda.is_available():
            needs += NEEDS['cuda_allocator_history']
        return needs

    def check(self, model: nn.Module, fsdp_version: Optional[int] = None) -> None:
        """Refuse a model that cannot be read.

        Raises:
            ValueError: for a model without parameters, under FSDP1, or without ``root_module``.
        """
        if self.saved_tensors:
            check_has_parameters(model)
        if self.module_memory:
            if fsdp_version == 1:
                raise ValueError(FSDP1_REFUSAL)
            check_model(model)
            find_root(model, self.root_module)

    def make_sources(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        take_memory: Callable[[FunctionCall, ModuleMemory, str], None],
        take_snapshot: Callable[[FunctionCall, str, AllocatorHistory], None],
        early: Optional[EarlyHistory] = None,
    ) -> dict[str, Source]:
        """The sources by kind, for the model as it is when training begins. Warns of a source that cannot work.

        Args:
            model (Module): the model.
            optimizers (Sequence): the optimizers.
            take_memory (Callable): called with a call, its module memory, and the class of the root module.
            take_snapshot (Callable): called with a call, the point of the reading, and the allocator's history.
            early (EarlyHistory, optional): what the allocator's history continues.
        """
        sources: dict[str, Source] = {'cpu': HostSource()}
        has_cuda = torch.cuda.is_available()
        if has_cuda:
            sources['cuda'] = CudaSource()
        if self.history:
            if has_cuda:
                history = AllocatorHistory(_HISTORY_ENTRIES)
                sources[HISTORY] = AllocatorHistorySource(history, take_snapshot, early)
            else:
                warn('MemProfiler continues without cuda_allocator_history: there is no CUDA device')
        is_compiled = compiled.is_compiled(model)
        saved = SavedTensorsSource(model, self.pack_functions)
        if self.saved_tensors:
            sources['saved_tensors'] = saved  # before the hooks, which read its count as a call begins and ends
        if self.attributes and not is_compiled:
            sources[HOOKS] = self._hook_source(model, saved)
        if self.module_memory and is_compiled:
            warn('MemProfiler continues without fsdp: it cannot see allocations of a model under torch.compile')
        elif self.module_memory:
            sources['fsdp'] = self._module_memory_source(model, optimizers, take_memory)
        return sources

    def _module_memory_source(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        take: Callable[[FunctionCall, ModuleMemory, str], None],
    ) -> Source:
        def make() -> ModuleMemoryRecorder:
            return ModuleMemoryRecorder(model, optimizers, self.root_module, self.depth)

        root = class_name(module_named(model, find_root(model, self.root_module)))
        return ModuleMemorySource(make, lambda call, memory: take(call, memory, root))

    def _hook_source(self, model: nn.Module, saved: SavedTensorsSource) -> Source:
        if self.hooks is None:
            return RootHooksSource(model, saved.packed_so_far, self.attributes)
        pre, post, reset = (self.hooks[name] for name in _HOOK_NAMES)
        return UserHooksSource(model, pre, post, reset, self.attributes)


def select_hooks(
    hooks: Optional[Hooks], attributes: Optional[Sequence[str]], enabled: bool
) -> tuple[Optional[dict[str, list[Function]]], tuple[str, ...]]:
    """Check the parameters on hooks around the forward. Returns the user's hooks (None: ours) and the attributes.

    Raises:
        ValueError: naming the parameter, the value and what is allowed.
    """
    if attributes is not None and (isinstance(attributes, str) or not isinstance(attributes, Sequence)):
        raise must_be('save_hook_attrs', 'a list of attribute names', attributes)
    names = tuple(_ATTRIBUTES if attributes is None else attributes) if enabled else ()
    if not all(isinstance(name, str) for name in names):
        raise must_be('save_hook_attrs', 'a list of attribute names', attributes)
    if hooks is None:
        return None, names
    if not enabled:
        raise ValueError('memory_hooks are given, but enable_memory_hooks=False; give one of them')
    if not isinstance(hooks, Mapping):
        raise must_be('memory_hooks', f'a mapping of {", ".join(_HOOK_NAMES)}', hooks)
    for name in hooks:
        if name not in _HOOK_NAMES:
            raise ValueError(f'memory_hooks.{name} is unknown; {allowed_are(_HOOK_NAMES, name)}')
    return {name: _resolved(hooks.get(name) or (), f'memory_hooks.{name}') for name in _HOOK_NAMES}, names


def _resolved(functions: Union[FunctionOrPath, Sequence[FunctionOrPath]], parameter: str) -> list[Function]:
    if isinstance(functions, str) or not isinstance(functions, Sequence):
        raise must_be(parameter, 'a list of functions or their dotted paths', functions)
    return [resolve_function(function, parameter) for function in functions]
