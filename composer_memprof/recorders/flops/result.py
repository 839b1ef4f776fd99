"""The floating-point operations of a batch: by phase, module and operation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class PhaseFlops:
    """FLOPs of each phase.

    Args:
        flops (int): of the model: ``forward_flops`` and ``backward_flops``.
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
    """Of one module with its submodules, by its dotted name; the root's is ``''``.

    Args:
        own_flops (int): of ``flops``, without those of its submodules.
        calls (int): of its forward, without those that a checkpoint runs again.
    """

    name: str
    type: str
    own_flops: int
    calls: int


@dataclass(frozen=True)
class OperationFlops(PhaseFlops):
    """Of one of torch's operators, as ``aten.addmm``."""

    name: str
    calls: int


@dataclass(frozen=True)
class UntrackedOperation:
    """An operator that there is no formula for. What only views its argument is left out."""

    name: str
    calls: int


@dataclass(frozen=True)
class BatchFlops:
    """What one batch took, all microbatches.

    Args:
        batch_flops (int): model FLOPs, forward and backward, nothing counted twice that is computed twice.
        hardware_flops (int): all that were done.
        modules (list): the largest first; so ``operations``.
        tracked_calls (int): of operators with a formula.
        untracked_calls (int): of the others.
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
        """As it is written to JSON."""
        return asdict(self)
