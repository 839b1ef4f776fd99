"""The floating-point operations of a batch: by phase, module and operation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class PhaseFlops:
    """FLOPs of each phase.

    Args:
        flops (int): of the model: ``forward_flops`` and ``backward_flops``.
        forward_flops (int): of the forward pass.
        backward_flops (int): of the backward pass, without what it recomputes.
        recomputed_flops (int): done again in the backward pass, by checkpoints and by attention that keeps no scores.
        optimizer_flops (int): of the optimizer's own step.
    """

    flops: int
    forward_flops: int
    backward_flops: int
    recomputed_flops: int
    optimizer_flops: int


@dataclass(frozen=True)
class ModuleFlops(PhaseFlops):
    """FLOPs of one module with its submodules.

    Args:
        name (str): dotted; the root's is ``''``.
        type (str): its class.
        own_flops (int): of ``flops``, without those of its submodules.
        calls (int): of its forward, without those that a checkpoint runs again.
    """

    name: str
    type: str
    own_flops: int
    calls: int


@dataclass(frozen=True)
class OperationFlops(PhaseFlops):
    """FLOPs of one of torch's operators, as ``aten.addmm``."""

    name: str
    calls: int


@dataclass(frozen=True)
class UntrackedOperation:
    """An operator without a formula. Operators that only return a view are not listed."""

    name: str
    calls: int


@dataclass(frozen=True)
class BatchFlops:
    """FLOPs of one batch, all microbatches.

    Args:
        batch_flops (int): model FLOPs: forward and backward, without what is recomputed.
        forward_flops (int): of the forward pass.
        backward_flops (int): of the backward pass, without what it recomputes.
        recomputed_flops (int): done again in the backward pass.
        optimizer_flops (int): of the optimizer's own step.
        hardware_flops (int): the sum of all of these.
        tracked_calls (int): of operators with a formula.
        untracked_calls (int): of the others.
        modules (list): the largest first.
        operations (list): the largest first.
        untracked_operations (list): the most called first.
    """

    batch_flops: int
    forward_flops: int
    backward_flops: int
    recomputed_flops: int
    optimizer_flops: int
    hardware_flops: int
    tracked_calls: int
    untracked_calls: int
    modules: list[ModuleFlops]
    operations: list[OperationFlops]
    untracked_operations: list[UntrackedOperation]

    def as_dict(self) -> dict[str, Any]:
        """As written to JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BatchFlops:
        """What :meth:`as_dict` was called on."""
        rows = {
            'modules': [ModuleFlops(**row) for row in data['modules']],
            'operations': [OperationFlops(**row) for row in data['operations']],
            'untracked_operations': [UntrackedOperation(**row) for row in data['untracked_operations']],
        }
        return cls(**{**data, **rows})
