"""One configuration: where it is from, and how to make its model, a batch and the loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


def fused_adamw(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """The kernel that reads no number of steps on the host, which tensors without data do not have."""
    return torch.optim.AdamW(parameters, lr=lr, fused=True)


@dataclasses.dataclass(frozen=True)
class Training:
    """A model on the default device and what it is trained with.

    Attributes:
        batch: arguments of the model by name.
        loss: of what the model returns, a number.
        optimizer: made of parameters and a learning rate.
        is_trained_by_optimizer: it calls forward and backward itself, as often as it needs, as SAM does.
    """

    model: nn.Module
    batch: dict[str, Any]
    loss: Callable[[Any], Tensor]
    optimizer: Callable[..., torch.optim.Optimizer] = fused_adamw
    is_trained_by_optimizer: bool = False

    def forward_and_backward(self, **_: Any) -> Tensor:
        """Leave new gradients, and return the loss."""
        self.model.zero_grad()
        loss = self.loss(self.model(**self.batch))
        loss.backward()
        return loss.detach()


@dataclasses.dataclass(frozen=True)
class Row:
    """A configuration.

    Attributes:
        name: unique.
        source: package, and the model or example in it.
        data: how the batch was made.
        make: makes it anew; no weights are downloaded.
    """

    name: str
    source: str
    data: str
    make: Callable[[], Training]


def train(training: Training, steps: int, after_step: Callable[[], None] = lambda: None) -> None:
    """Steps on the same batch. Attention keeps its scores, which every counter sees; fused kernels have tests of their own."""
    optimizer = training.optimizer(training.model.parameters(), lr=1e-3)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for _ in range(steps):
            if training.is_trained_by_optimizer:
                optimizer.step(training.forward_and_backward)
            else:
                training.loss(training.model(**training.batch)).backward()
                optimizer.step()
                optimizer.zero_grad()
            after_step()
