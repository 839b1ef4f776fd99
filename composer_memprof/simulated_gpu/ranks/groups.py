"""Every process group of a script becomes one that communicates with nobody, whichever backend it asks for.

Checked with torch 2.7.0 and 2.15.0.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Optional
from urllib.parse import parse_qsl, urlparse

import torch
from torch import distributed
from torch._C._distributed_c10d import FakeProcessGroup
from torch.distributed import distributed_c10d

from composer_memprof.simulated_gpu.ranks.process_group import SimulatedProcessGroup
from composer_memprof.simulated_gpu.ranks.replacing import replace

#: The backend's name under which torch makes these groups; scripts see the one that they asked for.
_BACKEND = 'simulated'


def install() -> None:
    """Make every process group one of these, without a store on the network."""
    distributed.Backend.register_backend(_BACKEND, _create, devices=['cpu', 'cuda'])
    make = replace(distributed_c10d, '_new_process_group_helper', _with_simulated_backend)
    _with_simulated_backend.original = make  # type: ignore[attr-defined]
    replace(distributed_c10d, 'rendezvous', _rendezvous)
    replace(distributed_c10d, '_store_based_barrier', _nothing_to_wait_for)
    replace(distributed_c10d, 'split_group', _split_group)
    distributed.split_group = _split_group  # type: ignore[attr-defined]
    replace(distributed, 'TCPStore', _store_of_this_process)


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> SimulatedProcessGroup:
    return SimulatedProcessGroup(rank, size)


def _with_simulated_backend(
    size: int, rank: int, ranks: list[int], backend: str, store: Any, name: str, *args: Any, **settings: Any
) -> tuple[Any, Any]:
    """In the place of ``_new_process_group_helper``."""
    asked = str(distributed_c10d.BackendConfig(distributed_c10d.Backend(backend)))
    device = settings.pop('device_id', None)
    settings.pop('backend_options', None)
    if size == -1:  # MPI would know
        size, rank, store = int(os.environ['WORLD_SIZE']), int(os.environ['RANK']), distributed.HashStore()
    make: Any = _with_simulated_backend.original  # type: ignore[attr-defined]
    group, prefixed = make(size, rank, ranks, distributed.Backend(_BACKEND), store, name, *args, **settings)
    if isinstance(group, SimulatedProcessGroup) and not group._device_types:
        _register(group, asked)
        group._set_group_name(name)
        group._set_group_desc(settings.get('group_desc') or 'undefined')
        if device is not None:
            group.bound_device_id = device
        world = distributed_c10d._world
        world.pg_map[group] = (backend, prefixed)
        world.pg_backend_config[group] = asked
    return group, prefixed


def _register(group: SimulatedProcessGroup, config: str) -> None:
    """Give the group torch's ``fake`` backend for each device, for what asks the group for its backends."""
    kinds = distributed.ProcessGroup.BackendType
    make = getattr(FakeProcessGroup, '_create_internal', FakeProcessGroup)
    for part in config.split(','):
        device, name = part.split(':')
        kind = getattr(kinds, name.upper(), kinds.CUSTOM)
        group._register_backend(torch.device(device), kind, make(group.rank(), group.size()))
        group._set_default_backend(kind)


def _rendezvous(url: Any, rank: int = -1, world_size: int = -1, **settings: Any) -> Iterator[tuple[Any, int, int]]:
    """This rank's place among all, from where torch reads it, and a store of this process alone."""
    query = dict(parse_qsl(urlparse(url).query))
    own = rank if rank >= 0 else int(query.get('rank', os.environ['RANK']))
    ranks = world_size if world_size > 0 else int(query.get('world_size', os.environ['WORLD_SIZE']))
    yield distributed.HashStore(), own, ranks


def _store_of_this_process(*args: Any, **settings: Any) -> distributed.HashStore:
    """In the place of ``TCPStore``, which takes a port and waits for all ranks."""
    return distributed.HashStore()


def _nothing_to_wait_for(*args: Any, **settings: Any) -> None:
    """In the place of ``_store_based_barrier``."""


def _split_group(
    parent_pg: Optional[Any] = None,
    split_ranks: Optional[list[list[int]]] = None,
    timeout: Optional[timedelta] = None,
    pg_options: Optional[Any] = None,
    group_desc: Optional[str] = None,
    **settings: Any,
) -> Optional[Any]:
    """In the place of ``split_group``, which only NCCL can: the part that this rank is in, None if it is in none."""
    if not split_ranks:
        raise ValueError('split_ranks cannot be None or empty')
    parent = parent_pg or distributed_c10d._get_default_group()
    of_parent = distributed.get_process_group_ranks(parent)
    for part in split_ranks:
        if parent.rank() in part:
            return distributed.new_group([of_parent[rank] for rank in part], timeout, group_desc=group_desc)
    return None
