"""FSDP2: the operators that show which storages are communication buffers."""

from __future__ import annotations

import importlib
from typing import Any

from composer_memprof.recorders.torch_private import private_attribute

REDUCE_SCATTER = 'c10d::_reduce_scatter_base_'
ALL_GATHER_COPY_IN = 'fsdp::all_gather_copy_in'
ALL_GATHER_COPY_OUT = 'fsdp::split_with_sizes_copy'
REDUCE_SCATTER_COPY_IN = 'fsdp::chunk_cat'


def _namespace(name: str) -> Any:
    importlib.import_module('torch.distributed.fsdp')  # which defines them
    return getattr(importlib.import_module('torch').ops, name)


for _operator in (ALL_GATHER_COPY_IN, ALL_GATHER_COPY_OUT, REDUCE_SCATTER_COPY_IN):
    private_attribute(
        f'torch.ops.{_operator.replace("::", ".")}',
        module=__name__,
        owner=lambda: _namespace('fsdp'),
    )
private_attribute('torch.ops.c10d._reduce_scatter_base_', module=__name__, owner=lambda: _namespace('c10d'))
