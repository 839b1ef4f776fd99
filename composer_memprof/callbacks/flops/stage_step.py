"""What Composer's Trainer runs of a model for one batch of a stage, for a model that is not the Trainer's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from composer.core import State
from composer.core.precision import get_precision_context

from composer_memprof.recorders.flops.without_data import backward
from composer_memprof.recorders.tensors import tensors_in


def step_of(stage: str, state: State) -> Callable[[Any, Any], None]:
    """Forward and, in training, loss and backward of a batch in one piece, in the precision of the Trainer."""

    def run(model: Any, batch: Any) -> None:
        batch = state.device.batch_to_device(batch)
        training = stage == 'train'
        with torch.set_grad_enabled(training), get_precision_context(state.precision, state.precision_config):
            if training:
                loss = model.loss(model(batch), batch)
            else:
                model.eval_forward(batch) if stage == 'eval' else model(batch)
        if training:
            total: Any = sum(each for each in tensors_in(loss) if each.requires_grad)
            backward(model, total)

    return run
