"""Models of the tests of Flops, with their FLOPs by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from composer import Trainer
from composer.loggers import InMemoryLogger
from torch import nn
from torch.utils.data import DataLoader

from composer_memprof.examples.byte_gpt import ByteGPT
from composer_memprof.recorders.flops.recorder import FlopsRecorder
from composer_memprof.recorders.flops.result import BatchFlops
from tests.conftest import FEATURES, train

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 32, 4, 2, 24, 8
#: FLOPs of one batch of Regression: a layer of 16 to 32, whose input has no gradient, and one of 32 to 1.
LAYER_1, LAYER_2 = 2 * 8 * FEATURES * 32, 2 * 8 * 32 * 1
REGRESSION = 2 * LAYER_1 + 3 * LAYER_2


def gpt_flops(batch: int = BATCH, length: int = LENGTH) -> dict[str, int]:
    """ByteGPT's matrix products, one by one: 2 m n k each."""
    tokens = batch * length
    qkv = 2 * tokens * WIDTH * 3 * WIDTH
    scores = 2 * batch * HEADS * length * length * (WIDTH // HEADS)
    values = scores
    out = 2 * tokens * WIDTH * WIDTH
    up = 2 * tokens * WIDTH * 4 * WIDTH
    down = 2 * tokens * 4 * WIDTH * WIDTH
    head = 2 * tokens * WIDTH * 256
    forward = LAYERS * (qkv + scores + values + out + up + down) + head
    # The gradient of each of a product's two factors is a product of the same size. Scores are computed again.
    return {'forward': forward, 'backward': 2 * forward, 'again': LAYERS * scores, 'up': up}


def gpt() -> ByteGPT:
    torch.manual_seed(3)
    return ByteGPT(d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS, max_seq_len=64)


def texts(lengths: list[int]) -> DataLoader:
    """One batch of sequences for each of ``lengths``."""
    torch.manual_seed(5)
    rows = [torch.randint(0, 256, (length + 1,)) for length in lengths for _ in range(BATCH)]
    samples: Any = [{'input_ids': row[:-1], 'labels': row[1:]} for row in rows]
    return DataLoader(samples, batch_size=BATCH)


def train_gpt(*callbacks: Any, batches: int = 4, length: int = LENGTH, **more: Any) -> Trainer:
    return train(*callbacks, model=gpt(), train_dataloader=texts([length] * batches), **more)


def count(model: nn.Module, run: Callable[[], Any]) -> BatchFlops:
    with FlopsRecorder(model) as recorder:
        run()
    assert recorder.error is None and recorder.result is not None
    result = recorder.result
    outside = [row for row in result.modules if row.name.startswith('(')]
    root = next((row for row in result.modules if row.name == ''), None)
    assert sum(row.flops for row in [*outside, *([root] if root else [])]) == result.batch_flops
    assert sum(row.own_flops for row in result.modules) == result.batch_flops
    assert sum(row.flops for row in result.operations) == result.batch_flops
    return result


def written(pattern: str = '*flops*.json', folder: Path = Path('test-run/memprof')) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(pattern))]


def only(pattern: str = '*flops*.json') -> dict[str, Any]:
    (data,) = written(pattern)
    return data


class Logged(InMemoryLogger):
    """What was logged, as ``{name: {batch: value}}``."""

    def of(self, name: str) -> dict[int, float]:
        return {int(timestamp.batch): value for timestamp, value in self.data.get(name, [])}
