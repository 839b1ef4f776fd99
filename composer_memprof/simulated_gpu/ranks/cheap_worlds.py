"""What takes longer with more ranks in torch, replaced by what does not, or hardly.

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


def _when_imported(module: str, name: str, replacement: Callable[..., Any]) -> None:
    def replace_there(imported: types.ModuleType) -> None:
        _replace(imported, name, replacement)

    wrapt.when_imported(module)(replace_there)


def _replace(module: types.ModuleType, name: str, replacement: Callable[..., Any]) -> None:
    try:
        replace(module, name, replacement)
    except NotReplacedError:
        pass
