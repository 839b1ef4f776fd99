"""SavedTensorsHook on two gloo ranks: what FSDP2 gathers are parameters, also where only their storages show it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.processes.ranks import run_on_ranks

pytestmark = [pytest.mark.dist, pytest.mark.slow]

RUN = """
import json, torch
from torch import distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from composer_memprof.recorders.saved_tensors.recorder import SavedTensorsRecorder

distributed.init_process_group('gloo')
WIDTH, HIDDEN = 32, 48

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

def plain():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(WIDTH, 4))

def shard(model, mesh=None, **more):
    for module in model:
        fully_shard(module, mesh=mesh, **more)
    return fully_shard(model, mesh=mesh, **more)

def tensor_parallel(model, mesh):
    for block in model[:2]:
        parallelize_module(block, mesh, {'up': ColwiseParallel(), 'down': RowwiseParallel()})
    return model

def compiled(model):
    for number in (0, 1):
        model[number] = torch.compile(model[number], backend='aot_eager')
    return model

def compiled_in_place(model):
    for number in (0, 1):
        model[number].compile(backend='aot_eager')
    return model

def checkpointed(model, kind):
    model[0] = checkpoint_wrapper(model[0], checkpoint_impl=kind)
    return model

def both(data, tensors, blocks=lambda model: model):
    mesh = init_device_mesh('cpu', (data, tensors), mesh_dim_names=('data', 'tensors'))
    return shard(blocks(tensor_parallel(plain(), mesh['tensors'])), mesh['data'])

half = {'mp_policy': MixedPrecisionPolicy(param_dtype=torch.bfloat16)}
reentrant = CheckpointImpl.REENTRANT
MODELS = {
    'plain': plain,
    'fsdp2': lambda: shard(plain()),
    'compiled blocks, sharded': lambda: shard(compiled(plain())),
    'sharded blocks, compiled': lambda: compiled(shard(plain())),
    'blocks compiled in place, sharded': lambda: shard(compiled_in_place(plain())),
    'sharded blocks, compiled in place': lambda: compiled_in_place(shard(plain())),
    'sharded, compiled as a whole': lambda: torch.compile(shard(plain()), backend='aot_eager'),
    'bf16': lambda: shard(plain(), **half),
    'bf16, compiled blocks': lambda: shard(compiled(plain()), **half),
    'tensor parallel': lambda: tensor_parallel(plain(), init_device_mesh('cpu', (2,))),
    'tensor parallel, sharded': lambda: both(1, 2),
    'sharded, tensor parallel': lambda: both(2, 1),
    'sharded, tensor parallel, compiled blocks': lambda: both(2, 1, compiled),
    'checkpoint': lambda: checkpointed(plain(), reentrant),
    'checkpoint, sharded, tensor parallel': lambda: both(2, 1, lambda model: checkpointed(model, reentrant)),
}

found = {}
for name, build in MODELS.items():
    torch._dynamo.reset()
    torch.manual_seed(1)
    model = build()
    batches = []
    for _ in range(2):
        with SavedTensorsRecorder(model) as recorder:
            x = torch.randn(8, WIDTH, requires_grad='checkpoint' in name)
            model(x).float().pow(2).sum().backward()
        assert recorder.error is None, recorder.error
        batches.append(recorder.result()().as_dict())
    found[name] = batches
if distributed.get_rank() == 0:
    with open('found.json', 'w') as file:
        json.dump(found, file)
distributed.destroy_process_group()
"""

#: Each model, and the one of which its parts keep the same.
SAME_AS = {
    'fsdp2': 'plain',
    'compiled blocks, sharded': 'plain',
    'sharded blocks, compiled': 'plain',
    'blocks compiled in place, sharded': 'plain',
    'sharded blocks, compiled in place': 'plain',
    'sharded, compiled as a whole': 'plain',
    'bf16, compiled blocks': 'bf16',
    'tensor parallel, sharded': 'tensor parallel',
    'sharded, tensor parallel': 'plain',
    'sharded, tensor parallel, compiled blocks': 'plain',
    'checkpoint, sharded, tensor parallel': 'checkpoint',
}
BYTES = (
    'total_bytes',
    'peak_bytes',
    'parameter_bytes',
    'input_bytes',
    'buffer_bytes',
    'recomputed_bytes',
    'left_bytes',
)


@pytest.fixture(scope='module')
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What rank 0 recorded of each model, in its first batch and in its second."""
    folder = tmp_path_factory.mktemp('found')
    (folder / 'run.py').write_text(RUN)
    run_on_ranks(folder / 'run.py', timeout=600)
    yield json.loads((folder / 'found.json').read_text())


@pytest.mark.parametrize('batch', [0, 1])
@pytest.mark.parametrize('name', SAME_AS)
def test_a_sharded_model_keeps_what_it_keeps_unsharded(found: dict[str, Any], name: str, batch: int) -> None:
    sharded, whole = found[name][batch], found[SAME_AS[name]][batch]
    assert {key: sharded[key] for key in BYTES} == {key: whole[key] for key in BYTES}
    assert whole['parameter_bytes'] > whole['total_bytes'] > 0 or 'checkpoint' in name
    if 'compiled' not in name:
        rows = [
            [(row['name'], row['bytes'], row['parameter_bytes']) for row in of['modules']] for of in (sharded, whole)
        ]
        assert sorted(rows[0]) == sorted(rows[1])
    for rows in ('modules', 'operations', 'shapes'):
        assert sum(row['bytes'] for row in sharded[rows]) == sharded['total_bytes']
