"""What this rank would send: the bytes of its collectives, by kind.

Nothing is sent here, so this is a formula. It is that of rings, in which each rank passes on what the others need, and
nothing is reduced by a network's own switches; of a group of N ranks, each sends

- (N - 1)/N of the whole to gather or to scatter it, reduced or not, or to exchange it with all;
- twice that to reduce it on all ranks;
- the tensor once to broadcast it, to reduce or gather it on one rank, or to send it.

Source: "Performance reported by NCCL tests", in the repository of ``nccl-tests``. What a link carries differs: NCCL
chooses its algorithm by size and topology.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence

import torch

#: Bytes sent since the process began: by the collective's name, and by whether its group spans several nodes.
_sent: Counter[tuple[str, bool]] = Counter()


def count(name: str, tensors: Iterable[torch.Tensor], times: float, *, between_nodes: bool) -> None:
    """Add a collective.

    Args:
        tensors: this rank's own.
        times: how often a rank sends the bytes of these.
        between_nodes: whether the ranks of the group are on several nodes.
    """
    _sent[name, between_nodes] += round(times * sum(tensor.nbytes for tensor in tensors))


def between_nodes(ranks: Sequence[int]) -> bool:
    """Whether these ranks are on several nodes. Nodes are filled in the order of ranks."""
    on_node = int(os.environ.get('LOCAL_WORLD_SIZE', '1'))
    return min(ranks) // on_node != max(ranks) // on_node


def sent() -> Counter[tuple[str, bool]]:
    """Bytes that this rank would have sent since the process began, by collective and whether between nodes.

    >>> sent()
    Counter()
    """
    return Counter(_sent)
