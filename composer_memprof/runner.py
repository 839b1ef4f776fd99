"""One training run from a config, and what it left behind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Optional

from composer.loggers import LoggerDestination

from composer_memprof.analysis.run import RunResult, list_artifacts
from composer_memprof.callbacks.base import ProfilingCallback
from composer_memprof.config import build_trainer

_LOSS = 'loss/train/total'


class _LossEnds(LoggerDestination):
    """Keeps the first loss and the last."""

    def __init__(self) -> None:
        self.first: Optional[float] = None
        self.last: Optional[float] = None

    def log_metrics(self, metrics: dict[str, Any], step: Optional[int] = None) -> None:
        del step  # unused
        loss = metrics.get(_LOSS)
        if loss is not None and math.isfinite(loss):
            self.first = float(loss) if self.first is None else self.first
            self.last = float(loss)


def run(config: Mapping[str, Any]) -> RunResult:
    """Train as ``config`` says.

    Raises:
        ConfigError: before the first batch, for a user's mistake.
    """
    losses = _LossEnds()
    trainer = build_trainer(config, loggers=[losses])
    callbacks = [callback for callback in trainer.state.callbacks if isinstance(callback, ProfilingCallback)]
    folders = {callback.folder_path for callback in callbacks}
    trainer.fit()
    batches = trainer.state.timestamp.batch.value
    trainer.close()
    return RunResult(trainer.state.run_name, batches, losses.first, losses.last, list_artifacts(folders))
