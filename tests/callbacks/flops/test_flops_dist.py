"""Flops on two ranks over gloo: each counts its own, sharded and with checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import FEATURES
from tests.support.processes.ranks import run_on_ranks

pytestmark = pytest.mark.dist

TRAIN = """
import os, torch
os.environ['FSDP_VERSION'] = '2'
from composer import Trainer
from composer.loggers import InMemoryLogger
from composer.models import ComposerModel
from composer.utils import dist
from torch.utils.data import DataLoader
from composer_memprof import Flops
from tests.conftest import FEATURES, Noise

class Deep(ComposerModel):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(*(
            torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.GELU(), torch.nn.Linear(64, FEATURES))
            for _ in range(3)
        ))
        self.head = torch.nn.Linear(FEATURES, 2)
    def forward(self, batch):
        return self.head(self.blocks(batch[0]))
    def loss(self, outputs, batch):
        return (outputs - batch[1]).pow(2).mean()

model = Deep()
for block in model.blocks:
    block._fsdp_wrap = block._activation_checkpointing = True
data = Noise(64)
logged = InMemoryLogger()
trainer = Trainer(
    model=model,
    train_dataloader=DataLoader(data, batch_size=8, sampler=dist.get_sampler(data)),
    optimizers=torch.optim.AdamW(model.parameters()),
    max_duration='3ba', device='cpu', run_name='sharded', progress_bar=False,
    device_train_microbatch_size=4,
    parallelism_config={'fsdp': {'activation_checkpointing': True, 'activation_checkpointing_reentrant': False}},
    callbacks=[Flops(peak_flops=1e10)], loggers=[logged],
)
trainer.fit()
trainer.close()
assert ('flops/batch_flops_all_ranks_estimate' in logged.data) == (dist.get_global_rank() == 0)
"""


def test_each_rank_counts_its_own_and_the_first_estimates_all(tmp_path: Path) -> None:
    script = tmp_path / 'train.py'
    script.write_text(TRAIN)
    run_on_ranks(script)
    linear, head = 2 * 8 * FEATURES * 64, 2 * 8 * FEATURES * 2
    for rank in (0, 1):
        data = json.loads((tmp_path / f'sharded/memprof/rank{rank}.3.flops.json').read_text())
        assert data['forward_flops'] == 6 * linear + head
        assert data['backward_flops'] == 12 * linear - linear + 2 * head  # the batch has no gradient
        assert data['recomputed_flops'] == 3 * linear  # a checkpoint stops when backward has what it needs
        estimate = {'batch_flops': 2 * data['batch_flops']} if rank == 0 else None
        assert (data['world_size'], data['all_ranks_estimate']) == (2, estimate)
        names = [row['name'] for row in data['modules']]
        assert len(names) == len(set(names))
        (block,) = (row for row in data['modules'] if row['name'] == 'blocks.1')
        assert (block['flops'], block['recomputed_flops'], block['calls']) == (6 * linear, linear, 2)
