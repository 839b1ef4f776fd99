"""A module's own tables: of forward hooks, set without ``register_forward_hook``, ten times as fast; of parameters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from composer_memprof.recorders.torch_private import private_attribute

_BEFORE = ('_forward_pre_hooks', '_forward_pre_hooks_with_kwargs')
_AFTER = ('_forward_hooks', '_forward_hooks_always_called')
for _attribute in (*_BEFORE, *_AFTER):
    private_attribute(f'torch.nn.Module.{_attribute}', module=__name__, owner=nn.Module)

#: ``(module)``: its own parameters by name, in the table that FSDP2 writes to.
parameters_of = private_attribute('torch.nn.Module._parameters', module=__name__, owner=nn.Module)

_BACKWARD = ('_backward_pre_hooks', '_backward_hooks')
for _attribute in _BACKWARD:
    private_attribute(f'torch.nn.Module.{_attribute}', module=__name__, owner=nn.Module)


def all_hooks(module: Any) -> list[Any]:
    """The tables of the hooks that run in the module's forward and backward."""
    return [getattr(module, name) for name in (*_BEFORE, *_AFTER, *_BACKWARD)]


def new_hook_id() -> int:
    """An id that no hook has."""
    return RemovableHandle(OrderedDict()).id


def add_forward_hooks(module: Any, hook_id: int, before: Callable[..., Any], after: Callable[..., Any]) -> None:
    """As ``register_forward_pre_hook(before, with_kwargs=True)`` and ``register_forward_hook(after, always_call=True)``."""
    module._forward_pre_hooks[hook_id] = before
    module._forward_pre_hooks_with_kwargs[hook_id] = True
    module._forward_hooks[hook_id] = after
    module._forward_hooks_always_called[hook_id] = True


def remove_forward_hooks(module: Any, hook_id: int) -> None:
    """Remove what :func:`add_forward_hooks` set."""
    for name in (*_BEFORE, *_AFTER):
        getattr(module, name).pop(hook_id, None)
