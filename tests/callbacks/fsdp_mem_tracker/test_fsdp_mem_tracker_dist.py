"""FSDPMemTracker on two ranks over gloo: sharded with FSDP2, and under DDP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.ranks import run_on_ranks

pytestmark = pytest.mark.dist

TRAIN = """
import json, os, torch
from pathlib import Path
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

def run(mode, microbatch, version):
    os.environ['FSDP_VERSION'] = version
    torch.manual_seed(1)
    model = Deep()
    for block in model.blocks:
        block._fsdp_wrap = True
    data = Noise(96)
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(data, batch_size=8, sampler=dist.get_sampler(data)),
        optimizers=torch.optim.AdamW(model.parameters()),
        max_duration='5ba', device='cpu', run_name=f'{mode}-{microbatch}', progress_bar=False, seed=3,
        device_train_microbatch_size=microbatch,
        parallelism_config={'fsdp': {}} if mode != 'ddp' else None,
        callbacks=[FSDPMemTracker(units='B', depth=3)] if mode != 'bare' else [],
    )
    trainer.fit()
    local = [p.to_local() if hasattr(p, 'to_local') else p for p in model.parameters()]
    trainer.close()
    rank = dist.get_global_rank()
    weights = [float(p.detach().double().sum()) for p in local]
    Path(f'{mode}-{microbatch}-{rank}.json').write_text(json.dumps([weights, sum(4 * p.numel() for p in local)]))

run('bare', 2, '2')
run('sharded', 8, '2')
run('sharded', 2, '2')
run('ddp', 4, '2')
try:
    run('fsdp1', 8, '1')
except ValueError as error:
    print('refused:', error)
"""


@pytest.fixture(scope='module')
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of all runs. Two ranks are started only once, because starting takes longer than the runs."""
    folder = tmp_path_factory.mktemp('runs')
    (folder / 'train.py').write_text(TRAIN)
    (folder / 'output').write_text(run_on_ranks(folder / 'train.py'))
    yield folder


def weights_and_bytes(runs: Path, name: str, rank: int = 0) -> tuple[list[float], int]:
    weights, size = json.loads((runs / f'{name}-{rank}.json').read_text())
    return weights, size


def recorded(runs: Path, name: str, rank: int) -> dict[str, Any]:
    (path,) = (runs / name / 'memprof').glob(f'fsdp_mem_rank_{rank}_train_*[0-9].json')
    assert path.with_suffix('.log').read_text().startswith('Device: cpu\n')
    return json.loads(path.read_text())


@pytest.mark.parametrize('microbatch', [8, 2])
def test_both_ranks_of_a_sharded_model_count_their_shards_to_the_byte(runs: Path, microbatch: int) -> None:
    name = f'sharded-{microbatch}'
    _, shard = weights_and_bytes(runs, name)
    for rank in (0, 1):
        document = recorded(runs, name, rank)
        sizes = document['phases']['optimizer']['cpu']
        assert sizes['ShardedParam'] == sizes['ShardedGrad'] == shard
        assert sizes['OptState'] == 2 * shard + 14 * 4
        block = 4 * (16 * 64 + 64 + 64 * 16 + 16)
        assert sizes['UnshardedParam'] == 0
        # gloo's thread frees the buffers of the last collective after the wait for it has returned
        assert sizes['AllGather'] + sizes['ReduceScatter'] in (0, block)
        head = 4 * (16 * 2 + 2)
        forward, backward = (document['phases'][name]['cpu'] for name in ('forward', 'backward'))
        # FSDP2 chooses which blocks stay unsharded between forwards; they are whole blocks.
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


def test_a_sharded_models_weights_are_bit_identical_with_and_without(runs: Path) -> None:
    for rank in (0, 1):
        assert weights_and_bytes(runs, 'bare-2', rank) == weights_and_bytes(runs, 'sharded-2', rank)


def test_fsdp1_is_refused_in_one_line(runs: Path) -> None:
    (refusal,) = (line for line in (runs / 'output').read_text().splitlines() if line.startswith('refused:'))
    assert 'FSDP_VERSION=2' in refusal


def test_under_ddp_the_model_inside_is_the_root(runs: Path) -> None:
    _, whole = weights_and_bytes(runs, 'ddp-4')
    for rank in (0, 1):
        document = recorded(runs, 'ddp-4', rank)
        sizes = document['phases']['optimizer']['cpu']
        assert (sizes['Parameter'], sizes['Gradient'], sizes['OptState']) == (whole, whole, 2 * whole + 14 * 4)
        assert document['root_module'] == ''
        assert document['modules'][0]['type'] == 'Deep'
