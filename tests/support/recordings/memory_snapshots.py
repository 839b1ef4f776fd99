"""What the tests of MemorySnapshot share."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.conftest import FEATURES, Regression

RUN = Path('test-run/torch_traces')


class Tied(Regression):
    """Two layers share a weight, a buffer is a view of another, and the optimizer's state outweighs the activations."""

    def __init__(self) -> None:
        super().__init__()
        first, second = torch.nn.Linear(FEATURES, FEATURES), torch.nn.Linear(FEATURES, FEATURES)
        second.weight = first.weight
        self.net = torch.nn.Sequential(first, second, torch.nn.Linear(FEATURES, 512), torch.nn.Linear(512, 1))
        self.register_buffer('table', torch.zeros(1000))
        self.register_buffer('tail', self.table[500:])
