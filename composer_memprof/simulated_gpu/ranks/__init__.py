"""One process that stands for one rank among many: nothing is sent, and the other ranks hold what this one holds.

- Every backend's name gets a process group that communicates with nobody (`groups`, `process_group`).
- Objects that are gathered or broadcast are this rank's own (`object_collectives`).
- A distributed checkpoint contains what this rank holds (`checkpoints`).
- What takes longer in torch with more ranks or parameters is replaced by what does not (`cheap_worlds`).
- What waits for other ranks outside of torch is told that there are none (`waiting`).
"""

from __future__ import annotations

import os
from typing import Optional

_VARIABLE = 'SIMULATED_RANKS'


def environment(ranks: int, rank: int = 0, ranks_per_node: Optional[int] = None) -> dict[str, str]:
    """The variables that launchers such as ``torchrun`` set, for one rank among ``ranks``.

    The device of a rank is ``cuda:{LOCAL_RANK}``, so the process needs ``ranks_per_node`` devices:
    ``environment_with(device, devices=ranks_per_node)``.

    Args:
        ranks_per_node: 8 by default, or ``ranks`` if they are fewer.

    >>> environment(16, rank=9)['LOCAL_RANK']
    '1'

    Raises:
        ValueError: if there is no such rank, or the nodes are not equally large.
    """
    on_node = ranks_per_node or min(ranks, 8)
    if not 0 <= rank < ranks:
        raise ValueError(f'rank={rank} must be at least 0 and less than ranks={ranks}')
    if ranks % on_node:
        raise ValueError(f'ranks={ranks} must be a multiple of ranks_per_node={on_node}')
    return {
        _VARIABLE: str(ranks),
        'RANK': str(rank),
        'WORLD_SIZE': str(ranks),
        'LOCAL_RANK': str(rank % on_node),
        'LOCAL_WORLD_SIZE': str(on_node),
        'NODE_RANK': str(rank // on_node),
        'MASTER_ADDR': '127.0.0.1',
        'MASTER_PORT': '29500',
    }


def simulated_ranks() -> Optional[int]:
    """How many ranks this process stands among, None if that is not simulated.

    >>> simulated_ranks() is None
    True
    """
    ranks = os.environ.get(_VARIABLE)
    return int(ranks) if ranks else None


def install() -> None:
    """Replace process groups with ones that communicate with nobody. Called once ``torch.distributed`` is imported."""
    from torch import distributed

    if not distributed.is_available():
        return
    from composer_memprof.simulated_gpu.ranks import cheap_worlds, checkpoints, groups, object_collectives, waiting

    groups.install()
    object_collectives.install()
    cheap_worlds.install()
    checkpoints.install()
    waiting.install()
