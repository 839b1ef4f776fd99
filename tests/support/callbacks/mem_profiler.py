"""What the tests of MemProfiler read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml

from composer_memprof import memprofilable
from tests.conftest import Regression

FOLDER = Path('test-run/memprof')
KEYS = ['0.training_step.2.start', '0.training_step.2.end']


def stats(name: str = 'rank_0_memory_stats.yaml', folder: Path = FOLDER) -> dict[str, Any]:
    return yaml.safe_load((folder / name).read_text())


class Marked(Regression):
    """A model whose loss calls a marked method."""

    @memprofilable
    def score(self, outputs: Any, batch: Any) -> torch.Tensor:
        return super().loss(outputs, batch)

    def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
        return self.score(outputs, batch)
