"""Tensors of collectives that run beside the script and that nobody waits for.

From torch 2.8 on NCCL's process group holds what an asynchronous collective reads and writes until ``work.wait()``. A script
that waits for ``work.get_future()``, or for nothing, leaves it to a thread of the group to see that the collective is done,
which looks ten times a second, and the next collective lets go of the tensors. The host is about one step ahead of the
device, so that at each moment the tensors of two steps are held. What a step is here: collectives between which nothing
was recorded for backward. While the host compiles, the device catches up.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence

import torch

_HOLDS = tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 8)
#: How many steps' collectives are not known to be done.
_STEPS = 2
#: The most collectives without a wait that are held, whatever was recorded.
_MOST = 256

#: The tensors of one collective; a wait empties it.
Shelf = list[torch.Tensor]


class Held:
    """The shelves of one group."""

    def __init__(self) -> None:
        self._shelves: deque[tuple[int, Shelf]] = deque()
        self._step = 0
        self._recorded = _recorded()
        self._compiled = _compiled()

    def hold(self, tensors: Sequence[torch.Tensor]) -> Shelf:
        """Let go of what is done, and hold these tensors."""
        shelf = [tensor for tensor in tensors if tensor.is_cuda]
        if not _HOLDS or not shelf:
            return []
        recorded, compiled = _recorded(), _compiled()
        self._step += recorded != self._recorded
        self._step += _STEPS if compiled != self._compiled else 0
        self._recorded, self._compiled = recorded, compiled
        while self._shelves and (self._shelves[0][0] <= self._step - _STEPS or len(self._shelves) >= _MOST):
            self._shelves.popleft()[1].clear()
        self._shelves.append((self._step, shelf))
        return shelf


def _recorded() -> tuple[int, int]:
    """Changes with each backward and each operator that is recorded for one."""
    return torch._C._current_graph_task_id(), torch.autograd._get_sequence_nr()


def _compiled() -> int:
    """How many graphs ``torch.compile`` has compiled."""
    utils = sys.modules.get('torch._dynamo.utils')
    return 0 if utils is None else int(utils.counters['stats']['unique_graphs'])
