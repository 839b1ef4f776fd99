"""What runs on a simulated GPU: operations on values, CUDA graphs, and compiled models."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from composer_memprof.simulated_gpu.devices import find_device
from composer_memprof.simulated_gpu.environment import environment_with
from tests.support.processes.simulated_runs import MIB, on_simulated_gpu

pytestmark = pytest.mark.slow

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
    command = [environment['CC'], str(source), '-O3', '-shared', '-fPIC', *libraries, '-o', str(built)]  # as Triton's
    subprocess.run(command, env={**environment, 'PATH': '/usr/bin:/bin'}, check=True, timeout=200)
    assert built.exists()
    monkeypatch.setenv('CC', 'a-compiler')
    monkeypatch.setattr('composer_memprof.simulated_gpu.environment.library', lambda: tmp_path / 'libcuda.so.1')
    assert environment_with(device)['CC'] == 'a-compiler'


def test_what_is_copied_to_pinned_memory_is_zeros_and_takes_no_memory(tmp_path: Path) -> None:
    """Also in the pages that it shares with what lies before and after it."""
    found = on_simulated_gpu(
        tmp_path,
        """
        import psutil
        size = 256 << 20
        on_device = torch.zeros(size, dtype=torch.uint8, device='cuda')
        pinned = torch.ones(size + 8, dtype=torch.uint8, pin_memory=True)
        full = psutil.Process().memory_info().rss
        pinned[5 : size + 5].copy_(on_device, non_blocking=True)
        found['freed'] = full - psutil.Process().memory_info().rss
        found['sums'] = [int(pinned[a:b].sum()) for a, b in ((0, 5), (5, size + 5), (size + 5, size + 8))]
        on_host = torch.ones(size + 8, dtype=torch.uint8)
        on_host[5 : size + 5].copy_(on_device)
        found['unpinned'] = int(on_host.sum())
        """,
    )
    assert found['sums'] == [5, 0, 3] and found['unpinned'] == 8
    assert found['freed'] > 200 << 20
