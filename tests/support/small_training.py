"""A small model, its data, and a Trainer on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from composer import Trainer
from composer.models import ComposerModel
from torch.utils.data import DataLoader, Dataset

FEATURES = 16


class Regression(ComposerModel):
    """Two layers and a squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def forward(self, batch: Any) -> torch.Tensor:
        return self.net(batch[0])

    def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
        return (outputs - batch[1]).pow(2).mean()

    def eval_forward(self, batch: Any, outputs: Any = None) -> torch.Tensor:
        return self(batch)


class Noise(Dataset):
    """Seeded noise, in samples."""

    def __init__(self, samples: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(samples, FEATURES, generator=generator)
        self.y = torch.randn(samples, 1, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


def loader(batches: int = 20, batch_size: int = 8, **more: Any) -> DataLoader:
    return DataLoader(Noise(batches * batch_size), batch_size=batch_size, **more)


def make_trainer(*callbacks: Any, batches: int = 12, **more: Any) -> Trainer:
    """A Trainer on the CPU over ``batches`` batches an epoch, one epoch unless told otherwise."""
    torch.manual_seed(7)
    model = more.pop('model', None) or Regression()
    settings: dict[str, Any] = {
        'train_dataloader': loader(batches),
        'optimizers': torch.optim.AdamW(model.parameters(), lr=1e-2),
        'max_duration': '1ep',
        'run_name': 'test-run',
        'device': 'cpu',
        'seed': 7,
        'progress_bar': False,
        **more,
    }
    return Trainer(model=model, callbacks=list(callbacks), **settings)


def train(*callbacks: Any, **more: Any) -> Trainer:
    """Train to the end and close."""
    trainer = make_trainer(*callbacks, **more)
    trainer.fit()
    trainer.close()
    return trainer
