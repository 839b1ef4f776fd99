"""The modules that torch puts around others, and the classes that FSDP2 makes of them."""

from __future__ import annotations

import functools
from typing import Optional

import torch
from torch import nn

from composer_memprof.recorders.torch_private import is_found, private
from composer_memprof.recorders.torch_private.compilation import CompiledWrapper

#: Of activation checkpoints and of offloading to the CPU.
_ActivationWrapper = private(
    'torch.distributed.algorithms._checkpoint.checkpoint_wrapper.ActivationWrapper', module=__name__
)
#: ``(model, check_fn=…)``: wrap the modules for which ``check_fn`` says so, so that their activations are recomputed.
apply_activation_checkpointing = private(
    'torch.distributed.algorithms._checkpoint.checkpoint_wrapper.apply_activation_checkpointing', module=__name__
)


@functools.cache
def _wrappers() -> tuple[tuple[type, str], ...]:
    """The classes of wrappers, and the attribute under which each holds its module."""
    kinds = [
        (nn.parallel.DistributedDataParallel, 'module'),
        (nn.DataParallel, 'module'),
        (CompiledWrapper, '_orig_mod'),
        (_ActivationWrapper, '_checkpoint_wrapped_module'),
    ]
    if torch.distributed.is_available():
        from torch.distributed.fsdp import FullyShardedDataParallel

        kinds.append((FullyShardedDataParallel, '_fsdp_wrapped_module'))
    return tuple((kind, attribute) for kind, attribute in kinds if is_found(kind))


def wrapped_by(module: nn.Module) -> Optional[nn.Module]:
    """The module that ``module`` is a wrapper of; None for any other module."""
    for kind, attribute in _wrappers():
        if isinstance(module, kind):
            return dict(module.named_children()).get(attribute)
    return None


def class_before_sharding(kind: type) -> type:
    """The class that FSDP2 made ``kind`` of, ``Block`` for ``FSDPBlock``; any other class itself."""
    if torch.distributed.is_available():
        from torch.distributed.fsdp import FSDPModule

        while len(kind.__bases__) == 2 and issubclass(kind.__bases__[0], FSDPModule):
            kind = kind.__bases__[1]
    return kind
