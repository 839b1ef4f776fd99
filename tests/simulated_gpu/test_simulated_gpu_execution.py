"""What a training does beside kernels runs on the simulated GPU: masks, graphs, compilation, the allocator's settings."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_memprof.simulated_gpu.devices import find_device
from composer_memprof.simulated_gpu.environment import environment_with
from tests.conftest import simulated_gpu

MIB = 1 << 20


def on_simulated_gpu(
    tmp_path: Path, code: str, *, kept: float = 1.0, devices: int = 1, fails: bool = False, **variables: str
) -> dict[str, Any]:
    """What the script puts into ``found``, with ``stderr`` and ``notes``."""
    environment = simulated_gpu(devices=devices, kept=kept)
    notes = tmp_path / 'notes.txt'
    script = tmp_path / 'script.py'
    head = 'import json, torch\nfound = {}\n'
    script.write_text(f'{head}{textwrap.dedent(code)}\nprint("\\n" + json.dumps(found))\n')
    environment |= {'SIMULATED_GPU_NOTES': str(notes), **variables}
    ran = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert (ran.returncode != 0) == fails, ran.stderr[-4000:]
    found = {} if fails else json.loads(ran.stdout.splitlines()[-1])
    return {**found, 'stderr': ran.stderr, 'notes': notes.read_text() if notes.exists() else ''}


VALUES = """
x = torch.zeros(1000, 8, device='cuda')
mask = torch.zeros(1000, device='cuda', dtype=torch.bool)
integers = torch.zeros(1000, device='cuda', dtype=torch.long)
operations = {
    'index': lambda: x[mask],
    'nonzero': lambda: torch.nonzero(x),
    'where': lambda: torch.where(mask)[0],
    'masked_select': lambda: x.masked_select(x > 0),
    'index_put': lambda: x.index_put((mask,), torch.zeros(8, device='cuda')),
    'unique': lambda: torch.unique(integers),
    'unique with inverse': lambda: torch.unique(integers, return_inverse=True)[1],
    'unique with counts': lambda: torch.unique(integers, return_counts=True)[1],
    'unique of rows': lambda: torch.unique(x, dim=0),
    'unique of rows with counts': lambda: torch.unique(x, dim=0, return_counts=True)[1],
    'unique of booleans': lambda: torch.unique(mask),
    'unique_consecutive': lambda: torch.unique_consecutive(integers),
    'coalesce': lambda: torch.sparse_coo_tensor(integers[None], x, (10, 8)).coalesce().values(),
    'bincount': lambda: torch.bincount(integers, minlength=64),
    'more than 2**31 elements': lambda: torch.nonzero(torch.empty(3 << 30, dtype=torch.bool, device='cuda')),
    'repeat_interleave': lambda: x.repeat_interleave(integers, dim=0),
}
for name, operation in operations.items():
    found[name] = list(operation().shape)
found['bins'] = torch.bincount(integers[:10], minlength=4).tolist()
found['read after a kernel'] = (torch.nonzero(mask)[:2] + 1).tolist()
# two routes of a mixture of experts: a loop over masks, and a split by counts
tokens = torch.zeros(64, 16, device='cuda')
chosen = torch.zeros(64, device='cuda', dtype=torch.long)
routed = torch.zeros_like(tokens)
for expert in range(4):
    rows = torch.where(chosen == expert)[0]
    routed.index_add_(0, rows, tokens[rows] * 2)
counts = torch.bincount(chosen, minlength=4).tolist()
found['experts'] = [list(part.shape) for part in tokens[chosen.argsort()].split(counts)]
# what nonzero allocates: the count, CUB's temporaries, the indices
torch.cuda.memory._record_memory_history()
rows = torch.nonzero(mask)
events = torch.cuda.memory._snapshot()['device_traces'][0]
found['allocated by nonzero'] = [event['size'] for event in events if event['action'] == 'alloc']
# what torch's own repeat_interleave allocates when it is given the size, and what its check adds without
for size in (1000, None):
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.memory._record_memory_history()
    torch.repeat_interleave(integers, output_size=size)
    events = torch.cuda.memory._snapshot()['device_traces'][0]
    sizes = [event['size'] if event['action'] == 'alloc' else -event['size'] for event in events
             if event['action'] in ('alloc', 'free_requested')]
    found[f'repeat_interleave to {size}'] = sizes
"""


@pytest.mark.parametrize('kept', [1.0, 0.5])
def test_what_depends_on_values_keeps_the_assumed_part(tmp_path: Path, kept: float) -> None:
    found = on_simulated_gpu(tmp_path, VALUES, kept=kept)
    rows = int(1000 * kept)
    assert found['index'] == [rows, 8]
    assert found['nonzero'] == [8 * rows, 2]
    assert found['where'] == [rows]
    assert found['masked_select'] == [8 * rows]
    assert found['index_put'] == [1000, 8]
    assert found['unique'] == found['unique with counts'] == found['unique_consecutive'] == [rows]
    assert found['unique with inverse'] == [1000]
    assert found['unique of rows'] == found['coalesce'] == [rows, 8]
    assert found['unique of rows with counts'] == [rows]
    assert found['more than 2**31 elements'] == [int((3 << 30) * kept), 1], 'counted in three chunks'
    assert found['unique of booleans'] == [1 if kept == 1 else 2]
    assert found['bincount'] == [64]
    assert found['repeat_interleave'] == [1000, 8]
    assert found['bins'] == [3, 3, 2, 2]
    assert found['read after a kernel'] == [[0], [0]]
    assert found['experts'] == [[16, 16]] * 4
    count, _, indices, _ = found['allocated by nonzero']  # CUB needs a temporary for each of its two steps
    assert (count, indices) == (4, 8 * rows)
    cumsum, temporary, freed, *rest = found['repeat_interleave to 1000']
    check = [8, -8] if tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 15) else [1000, 1, -1, -1000]
    assert found['repeat_interleave to None'] == [cumsum, temporary, freed, *check, *rest]
    assert f'masks, nonzero and unique keep {100 * kept:g} % of their elements' in found['notes']
    assert 'bincount spreads its elements evenly' in found['notes']
    assert 'repeat_interleave repeats every element once' in found['notes']


GRAPHS = """
def in_pool(pool):
    return [part for part in torch.cuda.memory_snapshot() if tuple(part['segment_pool_id']) == tuple(pool)]

model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Dropout(0.1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
batch = torch.zeros(64, 256, device='cuda')

def step():
    optimizer.zero_grad()
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
    return loss

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(2):
        step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=side):
    loss = step()
graph.replay()
found['loss'] = loss.item()
found['in its pool'] = sum(part['total_size'] for part in in_pool(graph.pool()))
found['where the loss is'] = any(
    part['address'] <= loss.data_ptr() < part['address'] + part['total_size'] for part in in_pool(graph.pool())
)

# a second graph in the same pool, and a stream that joins the capture
joining = torch.cuda.Stream()
second = torch.cuda.CUDAGraph()
before = found['in its pool']
with torch.cuda.graph(second, pool=graph.pool()):
    joining.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(joining):
        there = torch.empty(64 << 20, dtype=torch.uint8, device='cuda')
    torch.cuda.current_stream().wait_stream(joining)
second.replay()
found['of the joined stream'] = sum(part['total_size'] for part in in_pool(graph.pool())) - before

graphed = torch.cuda.make_graphed_callables(torch.nn.Linear(256, 256).cuda(), (batch.clone().requires_grad_(),))
graphed(batch.clone().requires_grad_()).sum().backward()
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        batch.sum().item()
except RuntimeError as error:
    found['waiting'] = str(error)
found['capturing'] = torch.cuda.is_current_stream_capturing()
"""


def test_graphs_are_captured_into_pools_and_replayed(tmp_path: Path) -> None:
    found = on_simulated_gpu(tmp_path, GRAPHS)
    assert found['loss'] == 0
    assert found['where the loss is'] and found['in its pool'] >= 2 * MIB
    assert found['of the joined stream'] == 64 * MIB
    assert 'operation failed due to a previous error during capture' in found['waiting']
    assert not found['capturing']


COMPILED = """
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(64), torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))

for mode in ('default', 'reduce-overhead', 'max-autotune-no-cudagraphs'):
    model = Block().cuda()
    compiled = torch.compile(model, mode=mode)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.zeros(8, 16, 64, device='cuda')
    for _ in range(3):
        with torch.autocast('cuda', torch.bfloat16):
            loss = compiled(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    found[mode] = loss.item()
queries = torch.zeros(1, 2, 128, 32, device='cuda')
found['flex'] = list(torch.compile(flex_attention)(queries, queries, queries).shape)
pools = {tuple(part['segment_pool_id']) for part in torch.cuda.memory_snapshot()}
found['private pools'] = len(pools - {(0, 0)})
"""


def test_a_compiled_model_trains(tmp_path: Path) -> None:
    caches = {'TORCHINDUCTOR_CACHE_DIR': str(tmp_path / 'inductor'), 'TRITON_CACHE_DIR': str(tmp_path / 'triton')}
    found = on_simulated_gpu(tmp_path, COMPILED, TORCHINDUCTOR_COMPILE_THREADS='1', **caches)
    assert found['default'] == found['reduce-overhead'] == found['max-autotune-no-cudagraphs'] == 0
    assert found['flex'] == [1, 2, 128, 32]
    assert found['private pools'] == 1  # that of reduce-overhead
    assert list((tmp_path / 'triton').rglob('*.cubin'))
    assert 'the time between any two events is 0.01 ms' in found['notes']


def test_ziglang_is_the_compiler_of_triton_where_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip('ziglang')
    device = find_device('h100-80gb')
    monkeypatch.delenv('CC', raising=False)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    monkeypatch.setenv('PATH', str(tmp_path))
    environment = environment_with(device)
    source, built = tmp_path / 'source.c', tmp_path / 'built.so'
    source.write_text('int cuInit(unsigned); int init(void) { return cuInit(0); }')
    libraries = [f'-L{environment["TRITON_LIBCUDA_PATH"]}', '-lcuda']
    command = [environment['CC'], str(source), '-shared', '-fPIC', *libraries, '-o', str(built)]
    subprocess.run(command, env={**environment, 'PATH': '/usr/bin:/bin'}, check=True, timeout=200)
    assert built.exists()
    monkeypatch.setenv('CC', 'a-compiler')
    monkeypatch.setattr('composer_memprof.simulated_gpu.environment.library', lambda: tmp_path / 'libcuda.so.1')
    assert environment_with(device)['CC'] == 'a-compiler'


ALLOCATOR = """
import gc, os
torch.cuda.init()
free, total = torch.cuda.mem_get_info()

def now(name):
    used = free - torch.cuda.mem_get_info()[0]
    found[name] = [torch.cuda.memory_allocated() >> 20, torch.cuda.memory_reserved() >> 20, used >> 20]

def mib(count):
    return torch.empty(count << 20, dtype=torch.uint8, device='cuda')

if 'Async' not in os.environ['PYTORCH_CUDA_ALLOC_CONF']:
    torch.cuda.memory._record_memory_history()
tensors = [mib(count) for count in (1, 3, 7, 30, 61, 5)]
now('allocated')
del tensors[2:]
now('freed')
tensors.append(mib(40))
now('used again')
other = torch.cuda.Stream()
tensors[-1].record_stream(other)
filling = []
try:
    while True:
        filling.append(mib(1024))
except torch.OutOfMemoryError as error:
    found['error'] = str(error)
found['filled'] = len(filling)
filling.clear()
torch.cuda.empty_cache()
now('emptied')
filling.append(mib(60 << 10))
if 'Async' not in os.environ['PYTORCH_CUDA_ALLOC_CONF']:
    torch.cuda.memory._dump_snapshot('snapshot.pickle')
found['retries'] = torch.cuda.memory_stats()['num_alloc_retries']
filling.clear(), tensors.clear()
torch.cuda.synchronize(), gc.collect(), torch.cuda.empty_cache()
now('at the end')
"""
#: MiB allocated, reserved and used on the device: after 1, 3, 7, 30, 61 and 5 MiB were allocated; after all but the
#: first two were freed; after 40 MiB were allocated; after the device was filled and the cache emptied.
SETTINGS = {
    # segments of 2 MiB for the first, 20 MiB for those below 10, 30 and 62: the last one's 1 MiB is not split off
    '': ([108, 114, 114], [4, 114, 114], [44, 114, 114], [44, 84, 84]),
    # 40 MiB are not split off 62
    'max_split_size_mb:25': ([108, 114, 114], [4, 114, 114], [44, 154, 154], [44, 62, 62]),
    # 30 becomes 32, and 61 becomes 64
    'roundup_power2_divisions:4': ([112, 118, 118], [4, 118, 118], [44, 118, 118], [44, 86, 86]),
    # one large segment, mapped and unmapped in steps of 20 MiB
    'expandable_segments:True': ([107, 122, 122], [4, 122, 122], [44, 122, 122], [44, 62, 62]),
    # a pool that grows by 32 MiB and is trimmed to what is used
    'backend:cudaMallocAsync': ([107, 128, 128], [4, 128, 128], [44, 128, 128], [44, 44, 44]),
}


@pytest.mark.parametrize('setting', SETTINGS)
def test_settings_of_the_allocator_have_their_effect(tmp_path: Path, setting: str) -> None:
    found = on_simulated_gpu(tmp_path, ALLOCATOR, PYTORCH_CUDA_ALLOC_CONF=setting)
    stages = ('allocated', 'freed', 'used again', 'emptied')
    assert tuple(found[stage] for stage in stages) == SETTINGS[setting]
    assert found['at the end'] == [0, 0, 0]
    assert found['filled'] == 79
    if 'Async' in setting:
        assert 'Allocation on device' in found['error']
        assert "cudaMallocAsync's pool grows by 32 MiB" in found['notes']
        return
    assert found['retries'] == 1
    free = {'': '109.88', 'max': '131.88', 'rou': '107.88', 'exp': '147.88'}[setting[:3]]
    assert f'GPU 0 has a total capacity of 79.19 GiB of which {free} MiB is free.' in found['error']
    assert 'this process has 79.0' in found['error'], 'NVML says so'
    command = [sys.executable, '-m', 'composer_memprof', 'inspect', '--json', str(tmp_path / 'snapshot.pickle')]
    inspected = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert inspected.returncode == 0, inspected.stderr


BOUNDARY = """
torch.cuda.init()
free, total = torch.cuda.mem_get_info()
most = total >> 21 << 21  # torch asks for multiples of 2 MiB
everything = torch.empty(most, dtype=torch.uint8, device='cuda')
found['left'] = torch.cuda.mem_get_info()[0] - (total - most)
try:
    torch.empty(1, device='cuda')
except torch.OutOfMemoryError as error:
    found['error'] = str(error)
del everything
torch.empty(1, device='cuda')
found['goes on'] = torch.cuda.memory_reserved()
torch.cuda.empty_cache()
try:
    torch.empty(most + 1, dtype=torch.uint8, device='cuda')
except torch.OutOfMemoryError as error:
    found['one more byte'] = str(error)
torch.cuda.set_per_process_memory_fraction(0.1)
try:
    torch.empty(8 << 30, dtype=torch.uint8, device='cuda')
except torch.OutOfMemoryError as error:
    found['fraction'] = str(error)
"""


def test_memory_ends_at_the_last_byte_and_training_can_go_on(tmp_path: Path) -> None:
    found = on_simulated_gpu(tmp_path, BOUNDARY)
    assert found['left'] == 0
    assert 'Tried to allocate 2.00 MiB' in found['error']
    assert found['goes on'] > 0
    assert 'CUDA out of memory' in found['one more byte']
    assert '7.92 GiB allowed' in found['fraction']


COLLECTED = """
torch.cuda.set_per_process_memory_fraction(0.1)
for _ in range(8):
    kept = [torch.empty(1 << 30, dtype=torch.uint8, device='cuda') for _ in range(5)]
    del kept
    large = torch.empty(3 << 30, dtype=torch.uint8, device='cuda')
    del large
found['reserved'] = torch.cuda.memory_reserved() >> 30
found['retries'] = torch.cuda.memory_stats()['num_alloc_retries']
"""


def test_blocks_are_collected_from_a_threshold_on(tmp_path: Path) -> None:
    found = on_simulated_gpu(tmp_path, COLLECTED, PYTORCH_CUDA_ALLOC_CONF='garbage_collection_threshold:0.6')
    assert found['retries'] == 0, 'unused blocks went back to the device before it was full'
    assert on_simulated_gpu(tmp_path, COLLECTED)['retries'] == 1


def test_without_a_cache_every_tensor_is_the_drivers(tmp_path: Path) -> None:
    code = """
    torch.cuda.init()
    free = torch.cuda.mem_get_info()[0]
    tensor = torch.empty(5_000_000, dtype=torch.uint8, device='cuda')
    found['used'] = free - torch.cuda.mem_get_info()[0]
    found['reserved'] = torch.cuda.memory_reserved()
    del tensor
    found['at the end'] = free - torch.cuda.mem_get_info()[0]
    """
    found = on_simulated_gpu(tmp_path, code, PYTORCH_NO_CUDA_MEMORY_CACHING='1')
    assert (found['used'], found['reserved'], found['at the end']) == (5_000_000, 0, 0)


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
try:
    dist.init_process_group('nccl', rank=0, world_size=2, store=dist.HashStore())
    dist.all_reduce(torch.ones(3, device='cuda'))
except RuntimeError as error:
    found['error'] = str(error)
"""


def test_one_process_trains_on_several_gpus_and_communicates_with_itself(tmp_path: Path) -> None:
    found = on_simulated_gpu(tmp_path, ONE_PROCESS, devices=2)
    first, second = found['data parallel']
    assert first >= 4 * 64, 'parameters, gradients and two states'
    assert 64 < second < 3 * 64, 'a copy of the parameters, and later its gradient'
    assert found['distributed'][0] >= 5 * 64, "and DDP's buckets"
    assert found['gathered'] == [1, 2, 3]
    assert 'NCCL takes no memory to send between the GPUs of one process' in found['notes']
    name = "NCCL between processes of the script's own (--ranks N stands for them)"
    assert 'error' in found and f'simulated GPU: {name} is not simulated; what called it fails' in found['stderr']
