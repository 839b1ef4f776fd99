"""Ranks that a script starts itself, as by ``torch.multiprocessing.spawn``: each process stands for its own rank."""

from __future__ import annotations

import functools
import os
from typing import Any, Optional

from composer_memprof.simulated_gpu import ranks


def install() -> None:
    """Let a process that makes a group on GPUs stand for the rank that it says it is. Processes on the CPU do communicate.

    Called once ``torch.distributed`` is imported, in a process that stands for no rank.
    """
    from torch import distributed

    if not distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    make = distributed.init_process_group

    @functools.wraps(make)
    def make_simulated(backend: Optional[str] = None, *arguments: Any, **settings: Any) -> None:
        place = _place(*arguments, **settings)
        if ranks.simulated_ranks() is None and place is not None and str(backend).lower() != 'gloo':
            _stand_for(*place)
        make(backend, *arguments, **settings)

    for module in (distributed, distributed_c10d):
        module.init_process_group = make_simulated  # type: ignore[attr-defined]


def _place(
    init_method: Any = None, timeout: Any = None, world_size: int = -1, rank: int = -1, *_: Any, **more: Any
) -> Optional[tuple[int, int]]:
    """The rank and how many there are, by the arguments of ``init_process_group`` or the environment; None for one."""
    size = world_size if world_size > 0 else int(os.environ.get('WORLD_SIZE', '1'))
    own = rank if rank >= 0 else int(os.environ.get('RANK', '0'))
    return (own, size) if size > 1 else None


def _stand_for(rank: int, size: int) -> None:
    import torch

    devices = max(torch.cuda.device_count(), 1)
    place = ranks.environment(size, rank, devices if size % devices == 0 else size)
    os.environ.update({**place, **{name: os.environ[name] for name in place if name in os.environ}})
    ranks.install()
