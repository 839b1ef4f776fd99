"""FSDPMemTracker on two ranks over gloo: sharded with FSDP2, and under DDP."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import child_environment

pytestmark = pytest.mark.dist

TRAIN = """
import sys, torch
from composer import Trainer
from composer.models import ComposerModel
from composer.utils import dist
from torch.utils.data import DataLoader
from composer_memprof import FSDPMemTracker
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

mode, microbatch = sys.argv[1], int(sys.argv[2])
torch.manual_seed(1)
model = Deep()
for block in model.blocks:
    block._fsdp_wrap = True
data = Noise(96)
trainer = Trainer(
    model=model,
    train_dataloader=DataLoader(data, batch_size=8, sampler=dist.get_sampler(data)),
    optimizers=torch.optim.AdamW(model.parameters()),
    max_duration='5ba', device='cpu', run_name='run', progress_bar=False, seed=3,
    device_train_microbatch_size=microbatch,
    parallelism_config={'fsdp': {}} if mode != 'ddp' else None,
    callbacks=[FSDPMemTracker(units='B', depth=3)] if mode != 'bare' else [],
)
trainer.fit()
local = [p.to_local() if hasattr(p, 'to_local') else p for p in model.parameters()]
print('weights', dist.get_global_rank(), [float(p.double().sum()) for p in local])
print('bytes', dist.get_global_rank(), sum(4 * p.numel() for p in local))
trainer.close()
"""


def two_ranks(mode: str, microbatch: int = 8, **environment: str) -> subprocess.CompletedProcess[str]:
    Path('train.py').write_text(TRAIN)
    composer = Path(sys.executable).parent / 'composer'
    return subprocess.run(
        [str(composer), '-n', '2', 'train.py', mode, str(microbatch)],
        capture_output=True,
        text=True,
        timeout=300,
        env=child_environment(PATH=f'{composer.parent}:/usr/bin:/bin', **environment),
    )


def recorded(rank: int) -> dict[str, Any]:
    (path,) = Path('run/memprof').glob(f'fsdp_mem_rank_{rank}_train_*.json')
    assert path.with_suffix('.log').read_text().startswith('Device: cpu\n')
    return json.loads(path.read_text())


@pytest.mark.parametrize('microbatch', [8, 2])
def test_both_ranks_of_a_sharded_model_tell_their_shards_to_the_byte(microbatch: int) -> None:
    run = two_ranks('fsdp2', microbatch, FSDP_VERSION='2')
    assert run.returncode == 0, run.stdout + run.stderr
    shard = int(run.stdout.split('bytes 0 ')[1].split()[0])
    for rank in (0, 1):
        document = recorded(rank)
        sizes = document['phases']['optimizer']['cpu']
        assert sizes['ShardedParam'] == sizes['ShardedGrad'] == shard
        assert sizes['OptState'] == 2 * shard + 14 * 4
        assert sizes['UnshardedParam'] == sizes['AllGather'] == sizes['ReduceScatter'] == 0
        block = 4 * (16 * 64 + 64 + 64 * 16 + 16)
        head = 4 * (16 * 2 + 2)
        forward, backward = (document['phases'][name]['cpu'] for name in ('forward', 'backward'))
        # What Composer leaves unsharded between the blocks' forward is FSDP2's to choose; whole blocks they are.
        assert (forward['UnshardedParam'] - head) % block == 0 or forward['UnshardedParam'] % block == 0
        assert forward['UnshardedParam'] >= block
        assert forward['Activation'] > 0 and backward['OptState'] == sizes['OptState']
        for peak in (document['peak'], *document['phases'].values()):
            assert sum(size for name, size in peak['cpu'].items() if name != 'Total') == peak['cpu']['Total']
        assert document['root_module'] == ''
        named = {module['name']: module for module in document['modules']}
        assert named['blocks.0']['parameter_bytes'] == block // 2
        if microbatch == 2:
            assert named['blocks.0']['calls'] == 4


def test_a_sharded_models_weights_are_bit_identical_with_and_without() -> None:
    weights = []
    for mode in ('bare', 'fsdp2'):
        run = two_ranks(mode, 2, FSDP_VERSION='2')
        assert run.returncode == 0, run.stdout + run.stderr
        weights.append(run.stdout.split('weights 0 ')[1].splitlines()[0])
    assert weights[0] == weights[1]


def test_fsdp1_is_refused_in_one_line() -> None:
    run = two_ranks('fsdp2', FSDP_VERSION='1')
    assert run.returncode != 0
    assert 'FSDP_VERSION=2' in run.stdout + run.stderr


def test_under_ddp_the_model_inside_is_the_root() -> None:
    run = two_ranks('ddp', 4)
    assert run.returncode == 0, run.stdout + run.stderr
    whole = int(run.stdout.split('bytes 0 ')[1].split()[0])
    for rank in (0, 1):
        document = recorded(rank)
        sizes = document['phases']['optimizer']['cpu']
        assert (sizes['Parameter'], sizes['Gradient'], sizes['OptState']) == (whole, whole, 2 * whole + 14 * 4)
        assert document['root_module'] == 'module'
        assert document['modules'][0]['type'] == 'Deep'
