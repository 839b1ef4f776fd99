"""Trainers on small models, and the seconds of their steps."""

from __future__ import annotations

import time
from typing import Any, Optional

import torch
from composer import Trainer
from composer.core import Callback

from composer_memprof.examples.byte_gpt import ByteGPT
from composer_memprof.examples.text_files import text_files
from tests.conftest import Regression, loader


class BatchTimer(Callback):
    """Seconds from each batch's start to its end, as the training thread sees it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def batch_start(self, state: Any, logger: Any) -> None:
        self._began = time.perf_counter()

    def batch_end(self, state: Any, logger: Any) -> None:
        self.seconds.append(time.perf_counter() - self._began)


def trainer_of(
    callbacks: list[Callback], batches: int, model: Optional[Any] = None, data: Any = None, device: str = 'cpu'
) -> Trainer:
    model = model or Regression()
    return Trainer(
        model=model,
        train_dataloader=data or loader(batches, batch_size=2),
        optimizers=torch.optim.SGD(model.parameters(), lr=1e-4),
        max_duration=f'{batches}ba',
        callbacks=callbacks,
        run_name='bench',
        device=device,
        seed=1,
        progress_bar=False,
    )


def gpt_trainer(callbacks: list[Callback], batches: int, device: str = 'cpu') -> Trainer:
    torch.manual_seed(0)
    data = text_files('{stdlib}/*.py', batch_size=8, seq_len=64, max_bytes=1_000_000)
    return trainer_of(callbacks, batches, ByteGPT(d_model=96, n_layers=3, max_seq_len=64), data, device)


def quickstart_trainer(callbacks: list[Callback]) -> Trainer:
    """The model, data and batch of yamls/quickstart.yaml."""
    torch.manual_seed(0)
    return trainer_of(callbacks, 1, ByteGPT(), text_files('{stdlib}/*.py'))
