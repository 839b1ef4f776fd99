"""The names of modules in every callback's files, for each way in which training wraps a model: on two gloo ranks."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_memprof.recorders.modules.names import OUTSIDE
from tests.support.processes.ranks import run_on_ranks

pytestmark = [pytest.mark.dist, pytest.mark.slow]

TRAIN = """
import json, os, torch
from pathlib import Path
from composer import Trainer
from composer.models import ComposerModel
from composer.utils import dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.data import DataLoader
from composer_memprof import Flops, FSDPMemTracker, MemProfiler, MemorySnapshot, SavedTensorsHook
from tests.conftest import FEATURES, Noise

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.module = torch.nn.Linear(FEATURES, 64)
        self.down = torch.nn.Linear(64, FEATURES)
    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.module(x)))

class Deep(ComposerModel):
    def __init__(self):
        super().__init__()
        self.module = torch.nn.Sequential(*(Block() for _ in range(3)))
        self.head = torch.nn.Linear(FEATURES, 2)
    def forward(self, batch):
        return self.head(self.module(batch[0]))
    def loss(self, outputs, batch):
        return (outputs - batch[1]).pow(2).mean()

def replace_blocks(model, function):
    for number, block in enumerate(model.module):
        model.module[number] = function(block)

def run(name, fsdp=None, whole=None, blocks=None):
    os.environ['FSDP_VERSION'] = '2'
    torch.manual_seed(1)
    model = Deep()
    if dist.get_global_rank() == 0:
        modules = {name: type(module).__name__ for name, module in model.named_modules()}
        parameters = [name for name, _ in model.named_parameters()]
        Path(f'{name}.json').write_text(json.dumps([modules, parameters]))
    for block in model.module:
        block._fsdp_wrap = block._activation_checkpointing = True
    if blocks is not None:
        replace_blocks(model, blocks)
    data = Noise(96)
    once = lambda batch: {'skip': f'{batch}ba', 'active': '1ba'}
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(data, batch_size=8, sampler=dist.get_sampler(data)),
        optimizers=torch.optim.AdamW(model.parameters()),
        max_duration='6ba', device='cpu', run_name=name, progress_bar=False, seed=3,
        parallelism_config=None if fsdp is None else {'fsdp': fsdp},
        compile_config=whole,
        callbacks=[
            MemProfiler(folder='{run_name}/MemProfiler', track_fsdp_mem=True, collect_funcs=['training_step']),
            FSDPMemTracker(folder='{run_name}/FSDPMemTracker', depth=9, schedule=once(2)),
            SavedTensorsHook(folder='{run_name}/SavedTensorsHook', schedule=once(3)),
            MemorySnapshot(folder='{run_name}/MemorySnapshot', schedule=once(4)),
            Flops(folder='{run_name}/Flops'),
        ],
    )
    trainer.fit()
    trainer.close()

compiled = lambda block: torch.compile(block, backend='aot_eager')
run('ddp')
run('ddp, checkpoints', blocks=checkpoint_wrapper)
run('ddp, compiled blocks', blocks=compiled)
run('ddp, compiled', whole={'backend': 'aot_eager'})
run('fsdp2', fsdp={})
run('fsdp2, checkpoints', fsdp={'activation_checkpointing': True})
run('fsdp2, compiled blocks', fsdp={}, blocks=compiled)
run('fsdp2, compiled blocks in checkpoints', fsdp={}, blocks=lambda block: checkpoint_wrapper(compiled(block)))
"""

WRAPPED = [line.split("'")[1] for line in TRAIN.splitlines() if line.startswith('run(')]
#: What torch's wrappers and classes add to names.
ADDED = ('_orig_mod', '_checkpoint_wrapped', 'module.module', 'FSDPBlock', 'FSDPLinear', 'DistributedDataParallel')


@pytest.fixture(scope='module')
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of all runs. Two ranks are started only once, because starting takes longer than the runs."""
    folder = tmp_path_factory.mktemp('runs')
    (folder / 'train.py').write_text(TRAIN)
    run_on_ranks(folder / 'train.py', timeout=600)
    yield folder


def modules_in(folder: Path) -> Iterator[tuple[str, str]]:
    """The names and classes of modules in all of a callback's files; without a class where there is none."""
    for path in folder.glob('*.json'):
        document = json.loads(path.read_text())
        for rows in (document.get('modules'), document.get('checkpoints')):
            yield from ((row['name'], row['type']) for row in rows or [] if isinstance(row, dict) and 'type' in row)
        yield from ((name, '') for names in document.get('unseen', {}).values() for name in names)
        if 'root_module' in document:
            yield document['root_module'], ''
    for path in folder.glob('*.pickle'):
        events = [event for trace in pickle.loads(path.read_bytes())['device_traces'] for event in trace]
        yield from ((event['module'], '') for event in events if 'module' in event)


@pytest.mark.parametrize('callback', ['FSDPMemTracker', 'SavedTensorsHook', 'MemorySnapshot', 'Flops', 'MemProfiler'])
@pytest.mark.parametrize('name', WRAPPED)
def test_every_module_in_a_callbacks_files_has_the_name_and_class_that_the_user_gave(
    runs: Path, name: str, callback: str
) -> None:
    modules, _ = json.loads((runs / f'{name}.json').read_text())
    folder = runs / name / callback
    found = set(modules_in(folder))
    assert {each for each, _ in found} <= {*modules, OUTSIDE}
    assert {(each, kind) for each, kind in found if kind} <= set(modules.items())
    if 'compiled' not in name:
        assert {'module.0', 'module.2.down', 'head'} <= {each for each, _ in found}
    elif callback in ('SavedTensorsHook', 'MemorySnapshot'):
        assert found
    readable = [path for path in folder.rglob('*') if path.suffix in ('.json', '.log', '.txt', '.html', '.yaml')]
    assert readable or callback == 'FSDPMemTracker'
    assert [(path.name, part) for path in readable for part in ADDED if part in path.read_text()] == []


@pytest.mark.parametrize('name', WRAPPED)
def test_a_snapshots_tensors_have_the_names_that_the_user_gave(runs: Path, name: str) -> None:
    _, parameters = json.loads((runs / f'{name}.json').read_text())
    for path in (runs / name / 'MemorySnapshot').glob('*.pickle'):
        rows: list[list[Any]] = pickle.loads(path.read_bytes())['composer_memprof']['tensors']
        assert {row[4] for row in rows if row[3] == 'parameter'} == set(parameters)
        states = {row[4].rpartition('.')[0] for row in rows if row[3] == 'optimizer_state'}
        assert states == set(parameters)
