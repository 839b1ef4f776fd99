"""The size of a simulated world: what its ranks allocate, wait for, and send."""

from __future__ import annotations

import json
import re

import pytest
import torch
from torch.distributed.fsdp._fully_shard._fsdp_common import _chunk_with_empty

from composer_memprof.simulated_gpu import ranks
from composer_memprof.simulated_gpu.ranks import cheap_worlds
from tests.support.processes.simulated_runs import run_rank

# -- the size of the world ---------------------------------------------------------------------------------------------


EVENTS = """
import gc, json, sys, types
gc.disable()  # which frees at another time in each process
from composer_memprof.simulated_gpu import ranks
if {as_in_torch}:
    sys.modules[ranks.__name__ + '.cheap_worlds'] = types.SimpleNamespace(install=lambda: None)
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group('cpu:gloo,cuda:nccl')
torch.cuda.memory._record_memory_history(stacks='python')

def train(wrap):
    model = wrap(nn.Sequential(nn.Embedding(30, 13), nn.Linear(13, 7), nn.Linear(7, 64)))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.zeros(4, 5, dtype=torch.long, device='cuda')).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

def sharded(model):
    for layer in model: fully_shard(layer)
    return fully_shard(model)
train(lambda model: sharded(model.cuda()))
train(lambda model: FullyShardedDataParallel(model, device_id=0, use_orig_params=True))
train(lambda model: DistributedDataParallel(model.cuda(), device_ids=[0]))
mesh = dist.init_device_mesh('cuda', (2, 4), mesh_dim_names=('a', 'b'))
train(lambda model: fully_shard(model.cuda(), mesh=mesh))
(trace, *_) = torch.cuda.memory._snapshot()['device_traces']
streams = list(dict.fromkeys(event['stream'] for event in trace))
print(json.dumps([[event['action'], event['size'], streams.index(event['stream'])] for event in trace]))
"""


@pytest.mark.slow
def test_torch_allocates_the_same_as_without_our_replacements() -> None:
    ours, theirs = (
        json.loads(run_rank(EVENTS.replace('{as_in_torch}', str(as_in_torch)), fresh=as_in_torch))
        for as_in_torch in (False, True)  # the replacements are made when torch is imported
    )
    assert len(ours) > 300
    assert ours == theirs


TENSORS_MADE = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
dist.init_process_group('nccl')

class Count(TorchDispatchMode):
    made = 0
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.made += sum(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(result))
        return result

def train(model):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(4, 64, device='cuda')).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

with Count() as count:
    train(fully_shard(nn.Linear(64, 64).cuda()))
    train(FullyShardedDataParallel(nn.Linear(64, 64), device_id=0))
mesh = dist.init_device_mesh('cuda', (dist.get_world_size() // 8, 8), mesh_dim_names=('a', 'b'))
train(fully_shard(nn.Linear(64, 64).cuda(), mesh=mesh))
print(count.made)
"""


def test_training_makes_as_many_tensors_on_many_ranks_as_on_few() -> None:
    few, many = (int(run_rank(TENSORS_MADE, count=count)) for count in (128, 8192))  # more than rows
    assert few == many


@pytest.mark.parametrize(
    ('length', 'count', 'dim'), [(12, 4, 0), (13, 4, 0), (3, 8, 0), (9, 8, 0), (12, 4, 1), (1, 1, 0)]
)
def test_a_part_that_is_made_when_asked_for_is_the_part_that_torch_makes(length: int, count: int, dim: int) -> None:
    tensor = torch.arange(float(2 * length)).reshape((length, 2) if dim == 0 else (2, length))
    theirs = _chunk_with_empty(tensor, count, dim)
    ours = cheap_worlds.Chunks(tensor, count, dim)
    assert len(ours) == len(theirs) == count
    for own, wanted in zip(ours, theirs, strict=True):
        assert torch.equal(own, wanted) and own.stride() == wanted.stride()
        assert own.data_ptr() == wanted.data_ptr() or not wanted.numel()
    with pytest.raises(IndexError):
        ours[count]


# -- what waits for other ranks -----------------------------------------------------------------------------------------


STREAMING = """
import os, sys, pathlib
os.makedirs('streaming/base')
for name in ('streaming/__init__.py', 'streaming/base/__init__.py'): pathlib.Path(name).touch()
pathlib.Path('streaming/base/distributed.py').write_text('''
import os
def get_rank(): return int(os.environ['RANK'])
def get_world_size(): return int(os.environ['WORLD_SIZE'])
def get_local_rank(): return int(os.environ['LOCAL_RANK'])
def get_local_world_size(): return int(os.environ['LOCAL_WORLD_SIZE'])
''')
sys.path.insert(0, '')
import torch.distributed
from streaming.base import distributed
print(distributed.get_rank(), distributed.get_world_size(), distributed.get_local_rank(), distributed.get_local_world_size())
"""


def test_streaming_is_told_that_each_rank_is_alone_on_its_node() -> None:
    assert run_rank(STREAMING, count=16, rank=11) == '11 16 0 1\n'


# -- the environment ------------------------------------------------------------------------------------------------------


def test_a_ranks_variables_are_the_launchers() -> None:
    place = ranks.environment(32, rank=13, ranks_per_node=4)
    assert (place['RANK'], place['WORLD_SIZE'], place['LOCAL_RANK'], place['LOCAL_WORLD_SIZE']) == (
        '13',
        '32',
        '1',
        '4',
    )
    assert place['NODE_RANK'] == '3'
    for arguments, reason in (((8, 8), 'rank=8 must be'), ((12, 0, 8), 'ranks=12 must be a multiple')):
        with pytest.raises(ValueError, match=re.escape(reason)):
            ranks.environment(*arguments)


TRAFFIC = """
import os
import torch
import torch.distributed as dist
from composer_memprof.simulated_gpu.ranks import traffic
dist.init_process_group('cpu:gloo,cuda:nccl')
node = dist.new_group(list(range(8)))
whole, own = torch.zeros(1600, device='cuda'), torch.zeros(100, device='cuda')  # 6,400 and 400 bytes
dist.all_reduce(whole)
dist.all_gather_into_tensor(whole, own)
dist.reduce_scatter_tensor(own, whole)
dist.all_to_all_single(torch.empty_like(whole), whole)
dist.broadcast(own, 0)
dist.all_gather([torch.empty_like(own) for _ in range(8)], own, group=node)
dist.all_reduce(own, group=dist.new_group([0]))
print(sorted(traffic.sent().items()))
"""


def test_the_bytes_of_each_collective_are_counted_as_if_they_were_sent_in_rings() -> None:
    assert eval(run_rank(TRAFFIC, count=16)) == [
        (('all_gather', False), 7 * 400),
        (('all_gather', True), 15 * 400),
        (('all_reduce', True), 2 * 15 * 400),
        (('all_to_all', True), 15 * 400),
        (('broadcast', True), 400),
        (('reduce_scatter', True), 15 * 400),
    ]
