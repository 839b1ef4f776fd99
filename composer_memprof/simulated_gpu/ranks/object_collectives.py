"""Collectives of Python objects answer with this rank's own: the other ranks are not there.

With NCCL, torch sends objects through tensors on the GPU. These are allocated here too.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any, Optional

import torch
from torch import distributed
from torch.distributed import distributed_c10d

from composer_memprof.simulated_gpu.ranks.replacing import replace

#: Bytes of all copies of an object together, above which the places share one copy.
_MOST_COPIED = 64 << 20


def install() -> None:
    for function in (
        all_gather_object,
        gather_object,
        broadcast_object_list,
        scatter_object_list,
        send_object_list,
        recv_object_list,
    ):
        replace(distributed_c10d, function.__name__, function)


def all_gather_object(object_list: list[Any], obj: Any, group: Optional[Any] = None) -> None:
    """Each place gets a copy of this rank's object."""
    if distributed_c10d._rank_not_in_group(group):
        return
    ranks = distributed.get_world_size(group)
    pickled = _pickled(obj)
    held = _tensors([len(pickled), 8, 8 * ranks], group)  # the object, its size, and all sizes
    _tensors([8 * ranks], group)  # NCCL's flat copy of the sizes
    held += _tensors([len(pickled) * ranks] * 2, group)  # all objects, and NCCL's flat copy of them
    del held
    object_list[:] = _copies(pickled, ranks)


def gather_object(
    obj: Any,
    object_gather_list: Optional[list[Any]] = None,
    dst: Optional[int] = None,
    group: Optional[Any] = None,
    group_dst: Optional[int] = None,
) -> None:
    """On the destination, each place gets a copy of this rank's object."""
    if distributed_c10d._rank_not_in_group(group):
        return
    if _is_this_rank(dst, group, group_dst) and object_gather_list is not None:
        object_gather_list[:] = _copies(_pickled(obj), distributed.get_world_size(group))


def broadcast_object_list(object_list: list[Any], *args: Any, **settings: Any) -> None:
    """The list stays this rank's own."""


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Optional[list[Any]] = None,
    src: Optional[int] = None,
    group: Optional[Any] = None,
    group_src: Optional[int] = None,
) -> None:
    """The source gets its own part. Another rank's output stays what it is."""
    if distributed_c10d._rank_not_in_group(group):
        return
    if scatter_object_input_list is not None and _is_this_rank(src, group, group_src):
        scatter_object_output_list[0] = scatter_object_input_list[distributed.get_rank(group)]


def send_object_list(object_list: list[Any], *args: Any, **settings: Any) -> None:
    """Nobody receives it."""


def recv_object_list(object_list: list[Any], src: Optional[int] = None, *args: Any, **settings: Any) -> int:
    """The list stays this rank's own.

    Raises:
        RuntimeError: if it holds no objects yet, and so needs the other rank's.
    """
    if None in object_list:
        sender = 'another rank' if src is None else f'rank {src}'
        raise RuntimeError(f'simulated ranks: the objects that {sender} sends are not there')
    return src or 0


def _is_this_rank(rank: Optional[int], group: Optional[Any], rank_in_group: Optional[int]) -> bool:
    if rank_in_group is not None:
        return rank_in_group == distributed.get_rank(group)
    return (rank or 0) == distributed.get_rank()


def _pickled(value: Any) -> bytes:
    file = io.BytesIO()
    distributed_c10d._pickler(file).dump(value)
    return file.getvalue()


def _copies(pickled: bytes, count: int) -> list[Any]:
    if len(pickled) * count > _MOST_COPIED:
        return [_unpickled(pickled)] * count
    return [_unpickled(pickled) for _ in range(count)]


def _unpickled(pickled: bytes) -> Any:
    return distributed_c10d._unpickler(io.BytesIO(pickled)).load()


def _tensors(sizes: Iterable[int], group: Optional[Any]) -> list[torch.Tensor]:
    device = distributed_c10d._get_object_coll_device(group)
    return [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes if device != 'cpu']
