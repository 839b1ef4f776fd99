"""Optimizers that read their number of steps from the GPU, where it is zero: no kernel has counted it."""

from __future__ import annotations

from typing import Any

import wrapt


def install() -> None:
    """Let them read that it is the first step, when Composer's are imported. Checked with Composer 0.32."""
    wrapt.when_imported('composer.optim.decoupled_weight_decay')(_decoupled)


def _decoupled(optimizers: Any) -> None:
    import torch

    original = optimizers.DecoupledAdamW.adamw

    def adamw(
        params: Any,
        grads: Any,
        exp_avgs: Any,
        exp_avg_sqs: Any,
        max_exp_avg_sqs: Any,
        state_steps: Any,
        **settings: Any,
    ) -> None:
        first = [torch.ones(()) for _ in state_steps]
        original(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, first, **settings)

    optimizers.DecoupledAdamW.adamw = staticmethod(adamw)
