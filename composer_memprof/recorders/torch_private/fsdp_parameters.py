"""The parameters of FSDP2's modules in each of their forms; ``named_parameters`` shows the present one alone."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Optional

import torch

from composer_memprof.recorders.torch_private import private_attribute

_GET_STATE = '_get_fsdp_state'
_state_of = private_attribute(
    f'torch.distributed.fsdp.FSDPModule.{_GET_STATE}',
    module=__name__,
    owner=lambda: importlib.import_module('torch.distributed.fsdp').FSDPModule,
)


@dataclass(frozen=True)
class FSDPParameter:
    """One parameter. The tensors of a form that it does not have now are left out, or have no memory.

    Args:
        name (str): dotted, from the root.
        sharded (Tensor): this rank's part of it.
        unsharded (list[Tensor]): the whole, as gathered.
        unsharded_gradients (list[Tensor]): of the whole, not reduced yet.
    """

    name: str
    sharded: torch.Tensor
    unsharded: list[torch.Tensor] = field(default_factory=list)
    unsharded_gradients: list[torch.Tensor] = field(default_factory=list)


def fsdp_parameters(model: torch.nn.Module) -> Iterator[FSDPParameter]:
    """The parameters of all FSDP2 modules in ``model``; none where the installed torch keeps them elsewhere."""
    for module in model.modules():
        if not hasattr(module, _GET_STATE):
            continue
        group = getattr(_state_of(module)(), '_fsdp_param_group', None)
        for parameter in getattr(group, 'fsdp_params', ()):
            found = _forms_of(parameter)
            if found is not None:
                yield found


def _forms_of(parameter: Any) -> Optional[FSDPParameter]:
    sharded = getattr(parameter, 'sharded_param', None)
    if not isinstance(sharded, torch.Tensor):
        return None
    whole = getattr(parameter, '_unsharded_param', None)
    gradients = [getattr(parameter, 'unsharded_accumulated_grad', None), getattr(whole, 'grad', None)]
    return FSDPParameter(
        getattr(parameter, '_param_fqn', None) or '?',
        sharded,
        _tensors([*getattr(parameter, 'all_gather_outputs', ()), whole]),
        _tensors(gradients),
    )


def _tensors(values: list[Any]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]
