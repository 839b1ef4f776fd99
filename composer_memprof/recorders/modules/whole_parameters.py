"""The modules whose parameters FSDP left whole on each rank, while it sharded others."""

from __future__ import annotations

import sys

from torch import nn

from composer_memprof.recorders.modules.names import named_modules


def whole_modules(model: nn.Module) -> dict[str, int]:
    """Bytes of such parameters by the name of their module, largest first; empty if FSDP2 shards none or all.

    Meant for the time between two batches, when sharded parameters are sharded.

    Args:
        model (Module): with or without wrappers.
    """
    tensors = sys.modules.get('torch.distributed.tensor')
    if tensors is None:
        return {}
    whole: dict[str, int] = {}
    seen: set[int] = set()
    is_sharded = False
    for name, module in named_modules(model):
        for parameter in module.parameters(recurse=False):
            if isinstance(parameter, tensors.DTensor):
                is_sharded = True
            elif id(parameter) not in seen:
                seen.add(id(parameter))
                whole[name] = whole.get(name, 0) + parameter.numel() * parameter.element_size()
    return dict(sorted(whole.items(), key=lambda item: -item[1])) if is_sharded else {}
