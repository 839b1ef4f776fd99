"""What MemProfiler reads of a model, as it was asked for: from parameters to sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import torch
from torch import nn

from composer_memprof.messages import allowed_are, warn
from composer_memprof.recorders.allocations.allocator_history import AllocatorHistory
from composer_memprof.recorders.compiled import is_compiled
from composer_memprof.recorders.functions.recorder import Call, Source
from composer_memprof.recorders.functions.selection import HOOKS, Collection
from composer_memprof.recorders.functions.sources import (
    AllocatorHistorySource,
    CudaSource,
    HostSource,
    ModuleMemorySource,
    RootHooksSource,
    SavedTensorsSource,
    UserHooksSource,
)
from composer_memprof.recorders.modules.model import FSDP1_REFUSAL, check_model, find_root
from composer_memprof.recorders.modules.recorder import ModuleMemoryRecorder
from composer_memprof.recorders.modules.result import ModuleMemory
from composer_memprof.recorders.saved_tensors.pack_functions import Function, FunctionOrPath, resolve_function
from composer_memprof.recorders.saved_tensors.recorder import check_has_parameters

Hooks = Mapping[str, Sequence[FunctionOrPath]]

_HOOKS = ('pre_forward_hooks', 'post_forward_hooks', 'reset_state_hooks')
#: What finetuning-scheduler's hooks set on the model; ours read it without setting anything.
_ATTRIBUTES = ('rss_pre_forward', 'rss_post_forward', 'rss_diff', 'npp_pre_forward', 'npp_post_forward', 'npp_diff')
_HISTORY_ENTRIES = 100_000


@dataclass(frozen=True)
class FunctionPlan:
    """Which sources there are.

    Args:
        collection (Collection): functions by kind, and which of their calls.
        saved_tensors (bool): whether what autograd keeps is read.
        pack_functions (tuple, optional): pack and unpack, in place of detaching.
        hooks (Mapping, optional): the user's around the forward, by ``_HOOKS``. None: ours.
        attributes (Sequence[str]): what of the hooks' is read; empty: there are none.
        history (bool): whether the allocator's history is kept.
        module_memory (bool): whether memory is told by category and module.
        root_module (str, optional): whose submodules are told apart.
        depth (int): levels of modules whose states are kept.

    Raises:
        ValueError: for kinds of readings that are named and switched off.
    """

    collection: Collection
    saved_tensors: bool
    pack_functions: Optional[tuple[Function, Function]]
    hooks: Optional[Mapping[str, Sequence[Function]]]
    attributes: Sequence[str]
    history: bool
    module_memory: bool
    root_module: Optional[str]
    depth: int

    def __post_init__(self) -> None:
        """Refuse what would be asked for, and not be there."""
        off = {
            'saved_tensors': (self.saved_tensors, 'enable_saved_tensors_hooks=True'),
            'fsdp': (self.module_memory, 'track_fsdp_mem=True'),
            'cuda_allocator_history': (self.history, 'cuda_allocator_history=True'),
        }
        for kind, (is_on, switch) in off.items():
            if kind in self.collection.own and not is_on:
                raise ValueError(f'collect_funcs.{kind} is given, and nothing of it is read; it needs {switch}')
        if self.root_module is not None and not isinstance(self.root_module, str):
            raise ValueError(
                f'fsdp_mem_tracker_root_module={self.root_module!r} is not allowed; it is the dotted name of a module'
            )

    def check(self, model: nn.Module, fsdp_version: Optional[int] = None) -> None:
        """Refuse a model that can't be read so.

        Raises:
            ValueError: without parameters, FSDP1, or without that root module.
        """
        if self.saved_tensors:
            check_has_parameters(model)
        if self.module_memory:
            if fsdp_version == 1:
                raise ValueError(FSDP1_REFUSAL)
            check_model(model)
            find_root(model, self.root_module)

    def sources(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        take_memory: Callable[[Call, ModuleMemory, str], None],
        take_snapshot: Callable[[Call, str, AllocatorHistory], None],
    ) -> dict[str, Source]:
        """By kind, for a model as it is when training begins; a device or a model that gives nothing is told of."""
        sources: dict[str, Source] = {'cpu': HostSource()}
        has_cuda = torch.cuda.is_available()
        if has_cuda:
            sources['cuda'] = CudaSource()
        if self.history:
            if has_cuda:
                sources['cuda_allocator_history'] = AllocatorHistorySource(
                    AllocatorHistory(_HISTORY_ENTRIES), take_snapshot
                )
            else:
                warn('MemProfiler goes on without cuda_allocator_history: there is no CUDA device')
        compiled = is_compiled(model)
        saved = SavedTensorsSource(model, self.pack_functions)
        if self.attributes and not compiled:
            sources[HOOKS] = self._hooks_of(model, saved)
        if self.saved_tensors:
            sources['saved_tensors'] = saved
        if self.module_memory and compiled:
            warn('MemProfiler goes on without fsdp: torch.compile allocates where nothing sees it')
        elif self.module_memory:

            def make() -> ModuleMemoryRecorder:
                return ModuleMemoryRecorder(model, optimizers, self.root_module, self.depth)

            root = type(model.get_submodule(find_root(model, self.root_module))).__name__
            sources['fsdp'] = ModuleMemorySource(make, lambda call, memory: take_memory(call, memory, root))
        return sources

    def _hooks_of(self, model: nn.Module, saved: SavedTensorsSource) -> Source:
        if self.hooks is None:
            return RootHooksSource(model, lambda: saved.so_far()[0], self.attributes)
        pre, post, reset = (self.hooks[name] for name in _HOOKS)
        return UserHooksSource(model, pre, post, reset, self.attributes)


def check_switches(**switches: Any) -> None:
    """Refuse what is neither true nor false.

    Raises:
        ValueError: naming the parameter and the value.
    """
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise ValueError(f'{name}={value!r} is not allowed; it is true or false')


def hooks_of(
    hooks: Optional[Hooks], attributes: Optional[Sequence[str]], enabled: bool
) -> tuple[Optional[dict[str, list[Function]]], tuple[str, ...]]:
    """Settle the parameters on hooks around the forward: the user's, or None for ours; and what is read of them.

    Raises:
        ValueError: naming the parameter, the value and what is allowed.
    """
    if attributes is not None and (isinstance(attributes, str) or not isinstance(attributes, Sequence)):
        raise ValueError(f"save_hook_attrs={attributes!r} is not allowed; it is a list of attributes' names")
    read = tuple(_ATTRIBUTES if attributes is None else attributes) if enabled else ()
    if not all(isinstance(name, str) for name in read):
        raise ValueError(f"save_hook_attrs={attributes!r} is not allowed; it is a list of attributes' names")
    if hooks is None:
        return None, read
    if not enabled:
        raise ValueError('memory_hooks are given, and enable_memory_hooks=False; give one of them')
    if not isinstance(hooks, Mapping):
        raise ValueError(f'memory_hooks={hooks!r} is not allowed; it is a mapping of {", ".join(_HOOKS)}')
    for name in hooks:
        if name not in _HOOKS:
            raise ValueError(f'memory_hooks.{name} is unknown; {allowed_are(_HOOKS, name)}')
    return {name: _resolved(hooks.get(name) or (), f'memory_hooks.{name}') for name in _HOOKS}, read


def _resolved(functions: Union[FunctionOrPath, Sequence[FunctionOrPath]], parameter: str) -> list[Function]:
    if isinstance(functions, str) or not isinstance(functions, Sequence):
        raise ValueError(f'{parameter}={functions!r} is not allowed; it is a list of functions or their dotted paths')
    return [resolve_function(function, parameter) for function in functions]
