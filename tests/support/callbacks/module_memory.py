"""Models and recordings of the tests of FSDPMemTracker."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any, Optional

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.conftest import FEATURES

SOON = {'skip': '2ba', 'active': '1ba'}
#: Bytes of Regression's parameters in fp32: two layers with biases.
PARAMETERS = 4 * (FEATURES * 32 + 32 + 32 + 1)


def recorded(path: str = 'test-run/memprof') -> dict[str, Any]:
    (file,) = (file for file in Path(path).glob('*.json') if not file.name.endswith('.summary.json'))
    return json.loads(file.read_text())


class Blocks(nn.Module):
    """Two blocks of three layers, with or without checkpoints."""

    def __init__(self, width: int = 32, reentrant: Optional[bool] = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(2)
        )
        self.head = nn.Linear(width, 1)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()  # reentrant checkpointing needs an input with a gradient
        for block in self.blocks:
            x = x + (block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant))
        return self.head(x)


class LiveStorages(TorchDispatchMode):
    """An independent count: the sum of all storages seen, computed again after each operation."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()
        self.met: dict[int, weakref.ref] = {}
        self.peak = 0
        self._see(known)

    def _see(self, value: Any) -> None:
        for leaf in torch.utils._pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self.met[id(storage)] = weakref.ref(storage)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._see((args, kwargs, result))
        live = {id(storage): storage for ref in self.met.values() if (storage := ref()) is not None}
        self.peak = max(self.peak, sum(storage.nbytes() for storage in live.values()))
        return result
