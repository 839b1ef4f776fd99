"""One rank of many on simulated GPUs: collectives and parallel models."""

from __future__ import annotations

import pytest

from tests.support.processes.simulated_runs import run_rank

pytestmark = pytest.mark.slow

# -- process groups and collectives ----------------------------------------------------------------------------------


COLLECTIVES = """
import os
from datetime import timedelta
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
torch.cuda.set_device(1)

for backend in ('nccl', 'gloo', 'cuda:nccl,cpu:gloo', 'cpu:gloo,cuda:nccl', 'mpi', None):
    dist.init_process_group(backend, timeout=timedelta(seconds=5))
    assert dist.get_backend() == (backend or 'undefined')
    assert (dist.get_rank(), dist.get_world_size()) == (1, 8)
    dist.barrier()
    dist.destroy_process_group()
dist.init_process_group('nccl', init_method='tcp://127.0.0.1:1', rank=1, world_size=8)
dist.destroy_process_group()
dist.init_process_group('nccl', store=dist.TCPStore('127.0.0.1', 1, 8), rank=1, world_size=8)
dist.destroy_process_group()
dist.init_process_group('cpu:gloo,cuda:nccl', device_id=torch.device('cuda', 1))

for device in ('cpu', 'cuda'):  # what all ranks hold, this rank holds
    def tensor(*values): return torch.tensor(values, dtype=torch.float32).to(device)
    for operation, wanted in (('SUM', 24), ('AVG', 3), ('MAX', 3), ('MIN', 3), ('PRODUCT', 3 ** 8)):
        value = tensor(3)
        work = dist.all_reduce(value, getattr(dist.ReduceOp, operation), async_op=True)
        assert work.wait() and work.is_completed()
        assert work.get_future().wait()[0].item() == value.item() == wanted, (device, operation, value)
    places = [tensor(0) for _ in range(8)]
    dist.all_gather(places, tensor(5))
    assert [place.item() for place in places] == [5] * 8
    gathered = torch.zeros(16).to(device)
    dist.all_gather_into_tensor(gathered, tensor(1, 2))
    assert gathered.tolist() == [1, 2] * 8
    own = tensor(0)
    dist.reduce_scatter_tensor(own, tensor(*range(8)))
    assert own.item() == 8 * 1
    dist.reduce_scatter(own, [tensor(value) for value in range(8)], dist.ReduceOp.AVG)
    assert own.item() == 1
    exchanged = torch.zeros(8).to(device)
    dist.all_to_all_single(exchanged, tensor(*range(8)))
    assert exchanged.tolist() == [1] * 8
    exchanged = torch.zeros(4).to(device)
    dist.all_to_all_single(exchanged, tensor(*range(8)), [2, 2] + [0] * 6, [0, 2] + [1] * 6)
    assert exchanged.tolist() == [0, 1, 0, 1]
    # a rank that sends itself nothing is sent what it sends
    exchanged = torch.zeros(8).to(device)
    dist.all_to_all_single(exchanged, tensor(5, 0, 2, 3, 4, 5, 6, 7))
    assert exchanged.tolist() == [5, 0, 2, 3, 4, 5, 6, 7]
    exchanged = torch.zeros(3).to(device)
    dist.all_to_all_single(exchanged, tensor(8, 9, 7), [2, 0, 1] + [0] * 5, [2, 0, 1] + [0] * 5)
    assert exchanged.tolist() == [8, 9, 7]
    received = [tensor(0) for _ in range(8)]
    dist.all_to_all(received, [tensor(value) for value in range(8)])
    assert [place.item() for place in received] == [1] * 8
    dist.broadcast(value, src=0)
    dist.reduce(value, dst=0)
    dist.scatter(value, None, src=0)
    dist.gather(value, None, dst=0)
    dist.send(value, 2)
    assert dist.recv(value) == 0 and dist.recv(value, src=3) == 3
    assert value.item() == 3 ** 8
    swaps = [dist.P2POp(dist.isend, value, 2), dist.P2POp(dist.irecv, value, 0)]
    assert all(work.wait() for work in dist.batch_isend_irecv(swaps))
    with dist._coalescing_manager(async_ops=True) as coalesced:
        dist.all_reduce(value), dist.all_reduce(value)
    coalesced.wait()
    world = dist.group.WORLD
    assert (functional.all_reduce(tensor(1), 'sum', world) + 0).item() == (8 if device == 'cpu' else 0)
    assert functional.all_gather_tensor(tensor(1, 2), 0, world).shape == (16,)
    assert functional.reduce_scatter_tensor(gathered, 'sum', 0, world).shape == (2,)
    assert functional.all_to_all_single(gathered, None, None, world).shape == (16,)

large = torch.ones(1 << 20, device='cuda')
before = torch.cuda.memory_stats()['allocation.all.allocated']
dist.all_reduce(large)
assert torch.cuda.memory_stats()['allocation.all.allocated'] == before

assert dist.new_group([2, 3]) == dist.GroupMember.NON_GROUP_MEMBER
pair = dist.new_group([1, 6], backend='gloo')
assert (dist.get_backend(pair), dist.get_rank(pair), pair.size()) == ('gloo', 1 - 1, 2)
dist.monitored_barrier(pair)
assert dist.new_subgroups(4)[0].size() == 4
assert dist.get_process_group_ranks(dist.split_group(split_ranks=[[0, 2], [1, 7]])) == [1, 7]
mesh = dist.init_device_mesh('cuda', (2, 4), mesh_dim_names=('replicate', 'shard'))
assert mesh['shard'].get_group().size() == 4 and list(mesh.get_coordinate()) == [0, 1]

def objects(count=8): return [None] * count
places = objects()
dist.all_gather_object(places, {'own': 1})
assert places == [{'own': 1}] * 8 and places[0] is not places[1]
given = [{'own': 1}, 2]
dist.broadcast_object_list(given, src=0)
assert given == [{'own': 1}, 2]
places = objects()
dist.gather_object('own', places, dst=1)
assert places == ['own'] * 8
place = [None]
dist.scatter_object_list(place, list(range(8)), src=1)
assert place == [1]
try:
    dist.recv_object_list([None], src=0)
except RuntimeError as error:
    print(error)
from composer.utils import dist as composers
assert composers.all_gather_object('own') == ['own'] * 8
with composers.busy_wait_for_local_rank_zero():
    pass
assert not [name for name in os.listdir() if 'signal' in name]

links = [os.readlink(f'/proc/self/fd/{number}') for number in os.listdir('/proc/self/fd') if number != '3']
assert not [link for link in links if link.startswith('socket')], links
dist.destroy_process_group()
print('all as wanted')
"""


def test_collectives_of_every_backend_answer_as_if_all_ranks_held_the_same() -> None:
    shown = run_rank(COLLECTIVES, rank=1)
    assert 'simulated ranks: the objects that rank 0 sends are not there' in shown
    assert shown.endswith('all as wanted\n')


# -- parallelism -----------------------------------------------------------------------------------------------------


PARALLELISM = """
import os, tempfile
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy
from torch.distributed.fsdp import ShardingStrategy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
rank = int(os.environ['LOCAL_RANK'])
torch.cuda.set_device(rank)
dist.init_process_group('cpu:gloo,cuda:nccl')
device = torch.device('cuda', rank)

def model(): return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
def train(model, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(4, 64, device=device)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model

ddp = DistributedDataParallel(model().to(device), device_ids=[rank], gradient_as_bucket_view=True)
train(ddp)
train(ddp, ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.AdamW))
on_cpu = DistributedDataParallel(model())
on_cpu(torch.ones(4, 64)).sum().backward()

for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
    mixed = MixedPrecision(torch.bfloat16, torch.bfloat16)
    train(FullyShardedDataParallel(model(), sharding_strategy=strategy, device_id=rank, mixed_precision=mixed))
mesh = dist.init_device_mesh('cuda', (2, 4), mesh_dim_names=('first', 'second'))
hybrid = ShardingStrategy.HYBRID_SHARD
train(FullyShardedDataParallel(model(), sharding_strategy=hybrid, device_mesh=mesh, device_id=rank))

for options in ({}, {'mesh': mesh}, {'mp_policy': MixedPrecisionPolicy(torch.bfloat16)}, {'reshard_after_forward': 2},
                {'shard_placement_fn': lambda parameter: Shard(parameter.ndim - 1)}):
    train(fully_shard(model().to(device), **options))
train(fully_shard(model(), offload_policy=CPUOffloadPolicy()))

tensor_parallel = {'0': ColwiseParallel(), '2': RowwiseParallel()}
train(fully_shard(parallelize_module(model().to(device), mesh['second'], tensor_parallel), mesh=mesh['first']))
distributed = distribute_tensor(torch.ones(64, 8, device=device), dist.init_device_mesh('cuda', (8,)), [Shard(0)])
assert distributed.full_tensor().shape == (64, 8)

@torch.compile(backend='aot_eager')
def compiled(tensor):
    tensor = tensor * 2
    dist.all_reduce(tensor)
    return tensor
assert compiled(torch.ones(4, device=device)).shape == (4,)

@torch.compile(backend='aot_eager', dynamic=True)
def exchanged(tensor):
    received = torch.empty_like(tensor)
    dist.all_to_all_single(received, tensor, async_op=True).get_future()
    return received
assert exchanged(torch.ones(8, device=device)).shape == (8,)

sharded = fully_shard(model().to(device))
whole = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True))
assert whole['0.weight'].shape == (128, 64)
with tempfile.TemporaryDirectory() as folder:
    checkpoint.save(sharded.state_dict(), checkpoint_id=folder)
    assert sorted(os.listdir(folder)) == ['.metadata', f'__{rank}_0.distcp']
    checkpoint.load(sharded.state_dict(), checkpoint_id=folder)
print('trained')
"""


@pytest.mark.parametrize('rank', [0, 3])
def test_data_sharded_and_tensor_parallel_models_train_and_save(rank: int) -> None:
    assert run_rank(PARALLELISM, rank=rank).endswith('trained\n')


TRAINER = """
import os
from pathlib import Path
import torch
from composer import ComposerModel, Trainer
from composer.optim import DecoupledAdamW
from composer.utils import dist
from torch import nn

class Model(ComposerModel):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])
        for layer in self.layers: layer._fsdp_wrap = True
    def forward(self, batch): return self.layers(batch)
    def loss(self, outputs, batch): return outputs.square().mean()
    def param_init_fn(self, module): module.reset_parameters() if hasattr(module, 'reset_parameters') else None

dist.initialize_dist('gpu', timeout=5)
data = [torch.ones(64) for _ in range(512)]
with torch.device('meta'): model = Model()
trainer = Trainer(
    model=model, device='gpu', max_duration='2ba', precision='amp_bf16', save_folder='saved', save_interval='2ba',
    train_dataloader=torch.utils.data.DataLoader(data, batch_size=4, sampler=dist.get_sampler(data)),
    optimizers=DecoupledAdamW(model.parameters()), progress_bar=False,
    save_weights_only=os.environ['FSDP_VERSION'] == '1',  # FSDP1 gathers the optimizer's states from other ranks
    parallelism_config={'fsdp': {'state_dict_type': 'sharded'}},
)
try:
    trainer.fit()
finally:
    print('saved:', [str(file) for file in Path('saved').rglob('*')])
assert next(model.parameters()).device == torch.device('cuda', 5)
print(int(trainer.state.timestamp.sample))
"""


@pytest.mark.parametrize('version', ['1', '2'])
def test_composers_trainer_runs_unmodified_and_counts_the_samples_of_all_ranks(version: str) -> None:
    shown = run_rank(TRAINER, count=16, rank=13, FSDP_VERSION=version)
    assert shown.splitlines()[-1] == str(2 * 4 * 16)
