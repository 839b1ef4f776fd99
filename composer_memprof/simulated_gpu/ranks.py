"""One process that stands for one rank among many: torch's ``fake`` process group behind every backend's name."""

from __future__ import annotations

import os
from typing import Optional

_VARIABLE = 'SIMULATED_RANKS'


def environment(ranks: int, rank: int = 0, ranks_per_node: Optional[int] = None) -> dict[str, str]:
    """The variables that launchers such as ``torchrun`` set, for one rank among ``ranks``.

    Args:
        ranks_per_node: 8 by default, or ``ranks`` if they are fewer.
    """
    on_node = ranks_per_node or min(ranks, 8)
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
    """How many ranks this process stands among, None if that is not simulated."""
    ranks = os.environ.get(_VARIABLE)
    return int(ranks) if ranks else None


def install() -> None:
    """Replace process groups with ones that communicate with nobody. Called once ``torch.distributed`` is imported."""
