"""Which models can be recorded, and the module whose submodules are reported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

import torch
from torch import nn

from composer_memprof.messages import allowed_are
from composer_memprof.recorders.modules.names import class_name, named_modules, own_module

FSDP1_REFUSAL = (
    'the model is sharded with FSDP1, whose flat parameters belong to no single module or category; set the '
    'environment variable FSDP_VERSION=2, so that Composer uses FSDP2'
)


def check_model(model: nn.Module) -> None:
    """Refuse a model whose memory can't be recorded.

    Raises:
        ValueError: for one without parameters, or under FSDP1.
    """
    if next(model.parameters(), None) is None:
        raise ValueError(f'the model, a {type(model).__name__}, has no parameters, so there is no training to track')
    if any(_is_fsdp1(module) for module in model.modules()):
        raise ValueError(FSDP1_REFUSAL)


def find_root(model: nn.Module, root_module: Optional[str]) -> str:
    """The dotted name of the module whose submodules are reported, in the model that the user wrote.

    Args:
        root_module (str, optional): the name that the user gave, which may have the parts of wrappers. None: the topmost
            module that FSDP2 shards, else the model.

    Raises:
        ValueError: if no module has that name; the message lists those there are.
    """
    names = {id(module): name for name, module in named_modules(model)}
    if root_module is not None:
        if root_module in names.values():
            return root_module
        with_wrappers = dict(model.named_modules()).get(root_module)
        if with_wrappers is not None:
            return names[id(own_module(with_wrappers))]
        present = sorted(name for name in names.values() if name)
        shown = present if len(present) <= 20 else [name for name in present if name.count('.') < 2][:20]
        if shown != present and not any(root_module in name for name in shown):
            shown = [*shown, '…']
        raise ValueError(
            f'root_module={root_module!r} is not in the model, a {class_name(model)}; {allowed_are(shown, root_module)}'
        )
    sharded = [name for name, module in named_modules(model, with_wrappers=True) if is_fsdp2(module)]
    return _common_ancestor(sharded) if sharded else ''


def _common_ancestor(names: Iterable[str]) -> str:
    split = [name.split('.') for name in names]
    common = split[0]
    for parts in split[1:]:
        same = [a == b for a, b in zip(common, parts)]
        common = common[: same.index(False) if False in same else len(same)]
    return '.'.join(common)


def is_fsdp2(module: nn.Module) -> bool:
    """True for a module that ``fully_shard`` was applied to."""
    if not torch.distributed.is_available():
        return False
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def _is_fsdp1(module: nn.Module) -> bool:
    if not torch.distributed.is_available():
        return False
    from torch.distributed.fsdp import FullyShardedDataParallel

    return isinstance(module, FullyShardedDataParallel)
