"""Distributed checkpoints contain what this rank holds: the other ranks' plans, and so the rest, are not there."""

from __future__ import annotations

import dataclasses
from typing import Any

import wrapt


def install() -> None:
    """Let one rank coordinate itself alone, when torch imports what saves. Checked with torch 2.7.0 and 2.15.0."""
    wrapt.when_imported('torch.distributed.checkpoint.utils')(_coordinate_alone)
    wrapt.when_imported('torch.distributed.checkpoint.default_planner')(_accept_parts)
    wrapt.when_imported('torch.distributed.checkpoint.filesystem')(_name_files_by_rank)
    wrapt.when_imported('torch.distributed.optim.zero_redundancy_optimizer')(_refuse_to_consolidate)


def _coordinate_alone(utils: Any) -> None:
    original = utils._DistWrapper.__init__

    def alone(self: Any, group: Any, use_dist: bool, coordinator_rank: int) -> None:
        original(self, group, False, coordinator_rank)

    utils._DistWrapper.__init__ = alone


def _accept_parts(planner: Any) -> None:
    """One rank's parts do not fill a tensor."""
    accepted = planner._validate_global_plan([], planner.Metadata({}))  # true in torch 2.7, no errors in 2.15
    planner._validate_global_plan = lambda plans, metadata: accepted


def _name_files_by_rank(filesystem: Any) -> None:
    """As the plan's place among all ranks' would name them."""
    writer = filesystem._FileSystemWriter
    original = writer.prepare_global_plan

    def prepare_global_plan(self: Any, plans: list[Any]) -> list[Any]:
        from torch.distributed import get_rank

        own = filesystem._StoragePrefix(f'__{get_rank()}_')
        return [dataclasses.replace(plan, storage_data=own) for plan in original(self, plans)]

    writer.prepare_global_plan = prepare_global_plan


def _refuse_to_consolidate(optimizers: Any) -> None:
    def refuse(self: Any, to: int = 0) -> None:
        raise RuntimeError(
            'simulated ranks: ZeroRedundancyOptimizer.consolidate_state_dict gathers the states of other ranks, '
            'which are not there'
        )

    optimizers.ZeroRedundancyOptimizer.consolidate_state_dict = refuse
