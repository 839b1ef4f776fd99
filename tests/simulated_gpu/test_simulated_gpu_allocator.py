"""Torch's allocator on a simulated GPU: its settings, the last byte, and its cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.simulated_runs import on_simulated_gpu

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
