"""What takes longer in torch with more ranks, or with more parameters, replaced by what does not, or hardly.

Each replacement gives the values of what it replaces, checked with torch 2.7.0. A version of torch that lacks one of
these functions keeps its own.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, Optional, overload

import torch
import wrapt
from torch.distributed import distributed_c10d

from composer_memprof.simulated_gpu.ranks.replacing import NotReplacedError, replace


def install() -> None:
    """Replace them, each when torch imports the module that it is in."""
    _replace(distributed_c10d, '_find_pg_by_ranks_and_tag', find_group)
    _when_imported('torch.distributed.fsdp._fully_shard._fsdp_common', '_chunk_with_empty', Chunks)
    _when_imported('torch.distributed.fsdp._runtime_utils', '_get_reduce_scatter_tensors', reduce_scatter_tensors)
    _when_imported('torch.distributed.utils', '_verify_param_shape_across_processes', verify_parameters)
    wrapt.when_imported('torch.distributed.fsdp._flat_param')(_unpad_without_chunks)
    wrapt.when_imported('torch.distributed.tensor._sharding_prop')(_shard_without_fake_runs)


class Chunks(Sequence[torch.Tensor]):
    """A tensor in as many parts as there are ranks, each made when it is asked for.

    FSDP2's ``_chunk_with_empty`` makes them all, of which two are read.
    """

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor = tensor
        self._count = num_chunks
        self._dim = dim
        self._length = -(-tensor.size(dim) // num_chunks)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[torch.Tensor]: ...
    def __getitem__(self, index: int | slice) -> torch.Tensor | list[torch.Tensor]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        start = index % self._count * self._length
        left = self._tensor.size(self._dim) - start
        if left <= 0 < start:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(left, self._length))


def find_group(tag: str, ranks: Sequence[int]) -> Optional[Any]:
    """In the place of ``_find_pg_by_ranks_and_tag``, which looks for each rank in a list of all."""
    if tag and not tag.startswith(('ptd:', 'user:')):
        tag = f'user:{tag}'
    world = distributed_c10d._world
    for group in world.tags_to_pg.get(tag, []):
        if group.size() == len(ranks) and all(map(world.pg_group_ranks[group].__contains__, ranks)):
            return group
    return None


def reduce_scatter_tensors(state: Any, unsharded_grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """In the place of FSDP1's ``_get_reduce_scatter_tensors``, which splits the gradient to see one part's size."""
    part = Chunks(unsharded_grad, state.world_size, 0)[0]
    padding = state.world_size * part.numel() - unsharded_grad.numel()
    padded = torch.nn.functional.pad(unsharded_grad, [0, padding]) if padding else unsharded_grad
    return padded, torch.empty_like(part)


def unpadded_shard(tensor: torch.Tensor, rank: int, world_size: int) -> tuple[torch.Tensor, int]:
    """In the place of FSDP1's ``FlatParamHandle._get_unpadded_shard``, which splits the parameters to take one part."""
    flat = torch.flatten(tensor) if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))
    parts = Chunks(flat, world_size, 0)
    return parts[rank], parts[0].numel() - parts[rank].numel()


def _unpad_without_chunks(flat_param: Any) -> None:
    flat_param.FlatParamHandle._get_unpadded_shard = staticmethod(unpadded_shard)


def _shard_without_fake_runs(sharding: Any) -> None:
    """Let DTensor ask for the results of those operators alone that have some.

    It runs each operator on fake tensors to see its results. That takes a quarter of a trial for an optimizer's operators
    on lists of all parameters, which return nothing.
    """
    propagator = sharding.ShardingPropagator
    results_of = getattr(propagator, '_propagate_tensor_meta_non_cached', None)
    if results_of is None:
        return

    def results_if_any(self: Any, schema: Any) -> Any:
        return results_of(self, schema) if schema.op._schema.returns else None

    propagator._propagate_tensor_meta_non_cached = results_if_any


def verify_parameters(process_group: Any, tensors: Sequence[torch.Tensor], logger: Optional[Any] = None) -> None:
    """In the place of ``_verify_param_shape_across_processes``, which reads each rank's number of parameters.

    It allocates what DDP allocates for that, on the parameters' device.
    """
    count = torch.tensor([len(tensors)], device=tensors[0].device)
    counts = [torch.empty_like(count) for _ in range(process_group.size())]
    process_group.allgather([counts], [count]).wait()
    sizes = torch.tensor([number for tensor in tensors for number in (*tensor.shape, *tensor.stride())])
    process_group.broadcast([sizes.to(count.device)]).wait()


def _when_imported(module: str, name: str, replacement: Callable[..., Any]) -> None:
    def replace_there(imported: types.ModuleType) -> None:
        _replace(imported, name, replacement)

    wrapt.when_imported(module)(replace_there)


def _replace(module: types.ModuleType, name: str, replacement: Callable[..., Any]) -> None:
    try:
        replace(module, name, replacement)
    except NotReplacedError:
        pass
