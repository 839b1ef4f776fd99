"""One training run from a config, and what it left behind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from composer.loggers import LoggerDestination

from composer_memprof.artifacts.manifest import Entry, find_manifests, read_manifest
from composer_memprof.callbacks.base import ProfilingCallback
from composer_memprof.config import build_trainer

_LOSS = 'loss/train/total'


@dataclass(frozen=True)
class Artifact:
    """A file that the run's manifests list, with the folder of its manifest."""

    folder: Path
    entry: Entry

    @property
    def path(self) -> Path:
        return self.folder / self.entry.path


@dataclass(frozen=True)
class RunResult:
    """What a run came to. Losses are in the model's own unit; None where no batch was trained."""

    run_name: str
    batches: int
    first_loss: Optional[float]
    last_loss: Optional[float]
    artifacts: list[Artifact]


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


def list_artifacts(folders: set[Path]) -> list[Artifact]:
    """What the manifests directly in ``folders`` list and is still there, in order of batch."""
    artifacts = [
        Artifact(folder, entry)
        for folder in sorted(folders)
        for manifest in find_manifests(folder)
        if manifest.parent == folder
        for entry in read_manifest(manifest)
        if entry.status != 'removed'
    ]
    return sorted(artifacts, key=lambda artifact: (artifact.entry.batch, artifact.entry.rank))
