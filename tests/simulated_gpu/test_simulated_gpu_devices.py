"""Several simulated GPUs, their streams, pinned memory, and processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes.simulated_runs import MIB, on_simulated_gpu

pytestmark = pytest.mark.slow

DEVICES = """
import ctypes
first = torch.ones(1 << 20, device='cuda:0')
second = first.to('cuda:1')
copied = torch.empty(1 << 20, device='cuda:1').copy_(first)
found['allocated'] = [torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1)]
found['free'] = [total - free for free, total in (torch.cuda.mem_get_info(0), torch.cuda.mem_get_info(1))]
found['peers'] = torch.cuda.can_device_access_peer(0, 1)
small = torch.tensor([1.0, 2.0], device='cuda:0').to('cuda:1')
found['values over peers'] = small.tolist()
with torch.cuda.device(1):
    found['current'] = str(torch.zeros(1, device='cuda').device)
torch.cuda.set_per_process_memory_fraction(0.01, 1)
try:
    torch.empty(1 << 30, dtype=torch.uint8, device='cuda:1')
except torch.OutOfMemoryError as error:
    found['error'] = str(error)

# several streams, each with its own blocks; a block goes back to its stream once the other one is done
side = torch.cuda.Stream(0)
with torch.cuda.stream(side):
    theirs = torch.empty(64 << 20, dtype=torch.uint8, device='cuda:0')
address = theirs.data_ptr()
theirs.record_stream(torch.cuda.current_stream(0))
del theirs
found['another stream'] = torch.empty(64 << 20, dtype=torch.uint8, device='cuda:0').data_ptr() != address
with torch.cuda.stream(side):
    found['its own stream'] = torch.empty(64 << 20, dtype=torch.uint8, device='cuda:0').data_ptr() == address

pinned = torch.arange(10.0).pin_memory()
on_device = pinned.to('cuda', non_blocking=True)
found['pinned'] = [pinned.is_pinned(), torch.empty(10, pin_memory=True).is_pinned(), torch.empty(10).is_pinned()]
found['copied back'] = torch.empty(10, pin_memory=True).copy_(on_device, non_blocking=True).tolist()
registered = torch.ones(5000)
runtime = torch.cuda.cudart()
runtime.cudaHostRegister(registered.data_ptr(), registered.nbytes, 0)
found['registered'] = [registered.is_pinned()]
runtime.cudaHostUnregister(registered.data_ptr())
found['registered'].append(registered.is_pinned())

driver = ctypes.CDLL('libcuda.so.1')
value = ctypes.c_void_p()
found['known to the driver'] = [
    driver.cuPointerGetAttribute(ctypes.byref(value), 3, ctypes.c_void_p(tensor.data_ptr())) == 0
    for tensor in (first, pinned, registered)
]
clocks = [ctypes.c_int(), ctypes.c_int()]
for clock, attribute in zip(clocks, (13, 36)):
    driver.cuDeviceGetAttribute(ctypes.byref(clock), attribute, 0)
found['clocks'] = [clock.value for clock in clocks]
"""


def test_devices_streams_and_pinned_memory(tmp_path: Path) -> None:
    found = on_simulated_gpu(tmp_path, DEVICES, devices=2)
    assert found['allocated'] == [4 * MIB, 8 * MIB]
    assert found['free'] == [20 * MIB, 20 * MIB]
    assert found['peers']
    assert found['values over peers'] == [1, 2]
    assert found['current'] == 'cuda:1'
    assert 'GPU 1 has a total capacity of 79.19 GiB' in found['error']
    assert found['another stream'] and found['its own stream']
    assert found['pinned'] == [True, True, False]
    assert found['copied back'] == list(range(10))
    assert found['registered'] == [True, False]
    assert found['known to the driver'] == [True, True, False], 'by this Triton refuses tensors of the CPU'
    assert all(found['clocks']), 'Inductor divides by them'


PROCESSES = """
import torch.multiprocessing as mp
from torch.utils.data import DataLoader

def in_child(queue):
    try:
        queue.put(torch.zeros(3, device='cuda').sum().item())
    except RuntimeError as error:
        queue.put(str(error))

if __name__ == '__main__':
    torch.zeros(3, device='cuda')
    for method in ('fork', 'spawn'):
        loader = DataLoader(
            torch.arange(8.0), batch_size=4, num_workers=1, pin_memory=True, multiprocessing_context=method
        )
        batches = [(batch.is_pinned(), batch.cuda(non_blocking=True).tolist()) for batch in loader]
        found[f'batches by {method}'] = batches
        context = mp.get_context(method)
        queue = context.Queue()
        child = context.Process(target=in_child, args=(queue,))
        child.start()
        found[f'in a child by {method}'] = queue.get(timeout=100)
        child.join()
    try:
        torch.zeros(3, device='cuda').untyped_storage()._share_cuda_()
    except RuntimeError as error:
        found['shared'] = str(error)
"""


def test_processes_load_data_and_do_not_share_the_device(tmp_path: Path) -> None:
    found = on_simulated_gpu(tmp_path, PROCESSES)
    batches = [[True, [0, 1, 2, 3]], [True, [4, 5, 6, 7]]]
    assert found['batches by fork'] == found['batches by spawn'] == batches
    assert 'Cannot re-initialize CUDA in forked subprocess' in found['in a child by fork']
    assert found['in a child by spawn'] == 0
    assert 'operation not supported on a simulated GPU' in found['shared']
    assert (
        found['stderr'].splitlines().count('simulated GPU: cudaIpcGetMemHandle is not simulated; what called it fails')
        == 1
    )


ONE_PROCESS = """
import os
import torch.distributed as dist

def train(model, name):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(64, 4096, device='cuda')).square().mean().backward()
        optimizer.step()
    found[name] = [torch.cuda.max_memory_allocated(device) >> 20 for device in range(2)]

layers = lambda: torch.nn.Sequential(torch.nn.Linear(4096, 4096, bias=False), torch.nn.ReLU()).cuda()
train(torch.nn.DataParallel(layers()), 'data parallel')
os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='0', RANK='0', WORLD_SIZE='1')
dist.init_process_group('nccl')
train(torch.nn.parallel.DistributedDataParallel(layers()), 'distributed')
gathered = [torch.zeros(3, device='cuda')]
dist.all_gather(gathered, torch.tensor([1.0, 2.0, 3.0], device='cuda'))
found['gathered'] = gathered[0].tolist()
dist.destroy_process_group()
# as of two processes that the script has started itself: this one stands for its rank, and needs no other
dist.init_process_group('nccl', rank=1, world_size=2, store=dist.HashStore())
dist.all_reduce(torch.ones(3, device='cuda'))
found['own rank'] = [dist.get_rank(), dist.get_world_size()]
"""


def test_one_process_trains_on_several_gpus_and_communicates_with_itself(tmp_path: Path) -> None:
    found = on_simulated_gpu(tmp_path, ONE_PROCESS, devices=2, fresh=True)
    first, second = found['data parallel']
    assert first >= 4 * 64, 'parameters, gradients and two states'
    assert 64 < second < 3 * 64, 'a copy of the parameters, and later its gradient'
    assert found['distributed'][0] >= 5 * 64, "and DDP's buckets"
    assert found['gathered'] == [1, 2, 3]
    assert 'NCCL takes no memory to send between the GPUs of one process' in found['notes']
    assert found['own rank'] == [1, 2] and found['stderr'] == ''
