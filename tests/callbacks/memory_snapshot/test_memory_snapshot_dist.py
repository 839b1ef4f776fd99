"""MemorySnapshot on two ranks over gloo: what FSDP2 gathers, reduces and holds has categories of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from composer_memprof.analysis.memory.blocks.lifetimes import lifetimes
from composer_memprof.analysis.memory.categories.categories import CATEGORIES, categories
from composer_memprof.analysis.memory.snapshot_report import DeviceReport, report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from tests.support.processes.ranks import run_on_ranks

pytestmark = [pytest.mark.dist, pytest.mark.slow]

TRAIN = """
import gc, json, os, torch
from pathlib import Path
from composer import Trainer
from composer.core import Callback
from composer.models import ComposerModel
from composer.utils import dist
from torch.utils.data import DataLoader
from composer_memprof import MemorySnapshot
from tests.conftest import FEATURES, Noise

os.environ['FSDP_VERSION'] = '2'

class Deep(ComposerModel):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(*(
            torch.nn.Sequential(torch.nn.Linear(FEATURES, 1024), torch.nn.GELU(), torch.nn.Linear(1024, FEATURES))
            for _ in range(3)
        ))
        self.head = torch.nn.Linear(FEATURES, 2)
    def forward(self, batch):
        return self.head(self.blocks(batch[0]))
    def loss(self, outputs, batch):
        return (outputs - batch[1]).pow(2).mean()

class Holds(Callback):
    '''Keeps parameters gathered and gradients unreduced, as accumulation over batches does.'''
    def fit_start(self, state, logger):
        for module in state.model.modules():
            if hasattr(module, 'set_requires_gradient_sync'):
                module.set_requires_gradient_sync(False, recurse=False)
                module.set_reshard_after_backward(False, recurse=False)

def run(name, *callbacks):
    torch.manual_seed(1)
    model = Deep()
    for block in model.blocks:
        block._fsdp_wrap = True
    data = Noise(48)
    sizes = {}
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(data, batch_size=2, sampler=dist.get_sampler(data)),
        optimizers=torch.optim.AdamW(model.parameters()),
        max_duration='5ba', device='cpu', run_name=name, progress_bar=False, seed=3,
        parallelism_config={'fsdp': {}},
        callbacks=[*callbacks, MemorySnapshot(schedule={'skip': '2ba', 'active': '2ba'})],
    )
    sizes['shard'] = sum(parameter.to_local().untyped_storage().nbytes() for parameter in model.parameters())
    trainer.fit()
    trainer.close()
    Path(f'{name}-{dist.get_global_rank()}.json').write_text(json.dumps(sizes))

run('plain')
gc.collect()  # what the first training left behind is none of the second one's
run('held', Holds())
"""
#: Bytes of the parameters of a block and of the last layer.
BLOCK, HEAD = 4 * (16 * 1024 + 1024 + 1024 * 16 + 16), 4 * (16 * 2 + 2)


@pytest.fixture(scope='module')
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of all runs. Two ranks are started only once, because starting takes longer than the runs."""
    folder = tmp_path_factory.mktemp('runs')
    (folder / 'train.py').write_text(TRAIN)
    run_on_ranks(folder / 'train.py')
    yield folder


def recorded(runs: Path, name: str, rank: int) -> tuple[DeviceReport, int]:
    """The report, and the bytes of this rank's shards."""
    (device,) = report_on(load_snapshot(runs / name / f'torch_traces/rank{rank}.4.memory_snapshot.pickle')).devices
    return device, json.loads((runs / f'{name}-{rank}.json').read_text())['shard']


def most_at_once(runs: Path, name: str, rank: int, category: str) -> int:
    """The most bytes that blocks of a category had at once."""
    snapshot = load_snapshot(runs / name / f'torch_traces/rank{rank}.4.memory_snapshot.pickle')
    (history,) = snapshot.devices
    blocks = lifetimes(history)
    chosen = categories(snapshot, history, blocks).category == CATEGORIES.index(category)
    change = np.zeros(len(history.action) + 2, dtype=np.int64)
    np.add.at(change, blocks.start[chosen] + 1, blocks.size[chosen])
    np.add.at(change, np.minimum(blocks.freed[chosen], len(history.action)) + 1, -blocks.size[chosen])
    return int(change.cumsum()[:-1].max())


def sizes_at_peak(device: DeviceReport) -> dict[str, int]:
    return {share.category: share.bytes for share in device.peak.categories}


@pytest.mark.parametrize('rank', [0, 1])
def test_what_fsdp2_gathers_and_reduces_is_no_activation(runs: Path, rank: int) -> None:
    device, shard = recorded(runs, 'plain', rank)
    sizes = sizes_at_peak(device)
    assert device.peak.phase == 'backward'
    assert sizes['parameter'] == shard
    # The profiler does not see what gloo's threads free later: of each number, 4 bytes.
    assert sizes['optimizer_state'] - 2 * shard - 14 * 4 in range(0, 17, 4)
    assert sizes['all_gather'] >= BLOCK and sizes['reduce_scatter'] >= BLOCK
    # gloo's threads decide whether a block is still gathered at the very peak.
    assert most_at_once(runs, 'plain', rank, 'unsharded_parameter') >= BLOCK
    rows = 2
    assert sizes['activation'] < 3 * 4 * rows * (2 * 1024 + 16) + 1000


@pytest.mark.parametrize('rank', [0, 1])
def test_parameters_kept_gathered_and_gradients_kept_unreduced_are_told_from_the_shards(runs: Path, rank: int) -> None:
    device, shard = recorded(runs, 'held', rank)
    sizes = sizes_at_peak(device)
    whole = 3 * BLOCK + HEAD
    assert sizes['parameter'] == shard
    assert sizes['unsharded_gradient'] == whole
    # A forward lets its blocks go, the backward gathers them again.
    assert sizes['unsharded_parameter'] in [blocks * BLOCK + HEAD for blocks in (1, 2, 3)]
    assert 0 <= device.allocated_at_start - shard - 2 * whole < 4096, 'and the batch and the last outputs'
