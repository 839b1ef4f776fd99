"""FSDP2: its own record of each parameter, and the operators that show which storages are communication buffers."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
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
        seen='2.7 to 2.11',
        module=__name__,
        owner=lambda: _namespace('fsdp'),
    )
private_attribute(
    'torch.ops.c10d._reduce_scatter_base_', seen='2.7 to 2.11', module=__name__, owner=lambda: _namespace('c10d')
)

_state_of = private_attribute(
    'torch.distributed.fsdp.FSDPModule._get_fsdp_state',
    seen='2.6 to 2.11',
    module=__name__,
    owner=lambda: importlib.import_module('torch.distributed.fsdp').FSDPModule,
)


class FSDPParameter:
    """One parameter as FSDP2 keeps it: attributes that are not there yet, or no longer, are None.

    Args:
        record (Any): torch's own.
    """

    def __init__(self, record: Any) -> None:
        self.sharded: Any = getattr(record, 'sharded_param', None)
        self.unsharded: Any = getattr(record, '_unsharded_param', None)
        self.gathered: list[Any] = list(getattr(record, 'all_gather_outputs', ()))
        #: Gradients of backward passes that ended without a reduction, in the dtype of the reduction.
        self.accumulated: Any = getattr(record, 'unsharded_accumulated_grad', None)

    def unsharded_gradients(self) -> Iterator[Any]:
        """Whole gradients, before they are reduced."""
        yield from (each for each in (self.accumulated, getattr(self.unsharded, 'grad', None)) if each is not None)


def parameters_of(modules: Iterable[Any]) -> Iterator[FSDPParameter]:
    """Of each of ``modules`` to which ``fully_shard`` was applied, its own parameters."""
    for module in modules:
        group = getattr(_state_of(module)(), '_fsdp_param_group', None)
        yield from map(FSDPParameter, getattr(group, 'fsdp_params', ()))
