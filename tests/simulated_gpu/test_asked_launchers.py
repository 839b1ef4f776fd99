"""Launchers that are asked what they would start: ``accelerate launch`` and ``deepspeed``."""

from __future__ import annotations

import functools
import importlib.util
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from composer_memprof.simulated_gpu.launchers.asking import _until_it_starts
from composer_memprof.simulated_gpu.launchers.unwrapping import Launch, NotUnwrappedError, unwrapped
from tests.conftest import simulated_gpu
from tests.support.processes import warm_python
from tests.support.processes.simulated_runs import QUIET, result_of, simulate

pytestmark = pytest.mark.slow

needs_accelerate = pytest.mark.skipif(not importlib.util.find_spec('accelerate'), reason='accelerate is not installed')
needs_deepspeed = pytest.mark.skipif(not importlib.util.find_spec('deepspeed'), reason='deepspeed is not installed')

CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: {kind}
mixed_precision: bf16
num_machines: 1
num_processes: 4
{more}
"""


def machine(devices: int) -> Mapping[str, str]:
    return {**simulated_gpu(devices=devices), **QUIET}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that is asked need not import torch: its process is forked."""
    monkeypatch.setattr(subprocess, 'run', functools.partial(warm_python.run, own_server=True))


def launched(line: str, rank: int = 0) -> Launch:
    return unwrapped(line.split(), rank=rank, machine=machine)


def words(launch: Launch) -> str:
    """The command, with ``PYTHON`` for an interpreter."""
    return ' '.join('PYTHON' if Path(word).name.startswith('python') else word for word in launch.command)


@pytest.mark.usefixtures('asked')
@needs_accelerate
def test_accelerate_starts_as_many_ranks_as_it_is_told_or_as_there_are_gpus() -> None:
    told = launched('accelerate launch --multi_gpu --num_processes 2 --mixed_precision fp16 train.py --lr 1')
    assert (words(told), told.ranks, told.ranks_per_node) == ('PYTHON -u train.py --lr 1', 2, 2)
    assert told.variables['ACCELERATE_MIXED_PRECISION'] == 'fp16' and 'CUDA_VISIBLE_DEVICES' not in told.variables
    counted = launched('accelerate launch -m my.train')
    assert (words(counted), counted.ranks) == ('PYTHON -u -m my.train', 8)
    alone = launched('accelerate launch --num_processes 1 --mixed_precision bf16 train.py')
    assert (words(alone), alone.ranks) == ('PYTHON train.py', None)
    assert alone.variables['ACCELERATE_MIXED_PRECISION'] == 'bf16'
    nodes = launched(
        'accelerate launch --multi_gpu --num_machines 2 --num_processes 16 --machine_rank 0 '
        '--main_process_ip 10.0.0.1 --main_process_port 29500 train.py'
    )
    assert (nodes.ranks, nodes.ranks_per_node) == (16, 8)


@pytest.mark.usefixtures('asked')
@needs_accelerate
@pytest.mark.parametrize('version', ['1', '2'])
def test_accelerates_config_file_says_how_its_ranks_shard(version: str) -> None:
    Path('fsdp.yaml').write_text(
        CONFIG.format(kind='FSDP', more=f'fsdp_config: {{fsdp_version: {version}, fsdp_offload_params: true}}')
    )
    launch = launched('accelerate launch --config_file fsdp.yaml train.py')
    assert launch.ranks == 4
    asked = {name: launch.variables[name] for name in ('ACCELERATE_USE_FSDP', 'FSDP_VERSION', 'FSDP_OFFLOAD_PARAMS')}
    assert asked == {'ACCELERATE_USE_FSDP': 'true', 'FSDP_VERSION': version, 'FSDP_OFFLOAD_PARAMS': 'true'}


@pytest.mark.usefixtures('asked')
@needs_accelerate
def test_a_port_that_others_use_does_not_matter() -> None:
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = f'accelerate launch --multi_gpu --num_processes 2 --main_process_port {port} train.py'
        assert launched(line).ranks == 2


def test_a_process_that_torch_starts_by_itself_is_not_what_a_launcher_starts() -> None:
    from torch._inductor.compile_worker.subproc_pool import SubprocPool

    def launch() -> None:
        pool = SubprocPool(1)
        try:
            subprocess.check_call([sys.executable, 'train.py'])
        finally:
            pool.shutdown()

    assert _until_it_starts(launch)['command'] == [sys.executable, 'train.py']


@needs_accelerate
def test_what_accelerate_does_not_take_is_said_in_its_own_words() -> None:
    for words_of_it in ('--multi_gpu --num_processes 1 train.py', '--no-such-option train.py'):
        with pytest.raises(NotUnwrappedError, match=r'^accelerate: '):
            launched(f'accelerate launch {words_of_it}')
    assert launched('accelerate env').command == ['accelerate', 'env']


TRAINS = """
import torch
from accelerate import Accelerator
accelerator = Accelerator()
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(8)])
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
for _ in range(4):
    accelerator.backward(model(torch.ones(8, 1024, device=accelerator.device)).square().mean())
    optimizer.step()
    optimizer.zero_grad()
"""


@needs_accelerate
def test_a_rank_of_accelerates_shards_what_the_config_shards() -> None:
    Path('train.py').write_text(TRAINS)
    wrap = 'fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 1000000'
    Path('fsdp.yaml').write_text(CONFIG.format(kind='FSDP', more=f'fsdp_config: {{fsdp_version: 2, {wrap}}}'))
    launch = ('--gpu', 'a10g', '--', 'accelerate', 'launch')
    sharded = result_of(*launch, '--config_file', 'fsdp.yaml', 'train.py', fresh=True)
    whole = result_of(*launch, '--num_processes=4', '--multi_gpu', 'train.py', fresh=True)
    assert (sharded['ranks'], whole['ranks'], sharded['verdict'], whole['verdict']) == (4, 4, 'fits', 'fits')
    (less,), (more,) = (found['processes'][0]['devices'] for found in (sharded, whole))
    assert less['allocated'] < more['allocated'] / 2


@pytest.mark.usefixtures('asked')
@needs_accelerate
def test_an_accelerate_without_deepspeed_says_so() -> None:
    if importlib.util.find_spec('deepspeed'):
        pytest.skip('deepspeed is installed')
    with pytest.raises(NotUnwrappedError, match='DeepSpeed is not installed'):
        launched('accelerate launch --use_deepspeed --num_processes 2 train.py')


@pytest.mark.usefixtures('asked')
@needs_deepspeed
def test_deepspeed_starts_a_rank_on_each_gpu_and_tells_it_its_place() -> None:
    launch = launched('deepspeed --num_gpus 4 train.py --deepspeed', rank=2)
    assert (words(launch), launch.ranks) == ('PYTHON -u train.py --local_rank=2 --deepspeed', 4)
    Path('hosts').write_text('one slots=4\ntwo slots=4\n')
    nodes = launched('deepspeed --hostfile hosts --no_local_rank --module my.train', rank=5)
    assert (words(nodes), nodes.ranks, nodes.ranks_per_node) == ('PYTHON -u -m my.train', 8, 4)


def test_a_launcher_that_is_not_installed_is_named() -> None:
    if importlib.util.find_spec('deepspeed'):
        pytest.skip('deepspeed is installed')
    refused = simulate('--', 'deepspeed', 'train.py')
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "deepspeed: ModuleNotFoundError: No module named 'deepspeed'" in refused.stderr


SPAWNS = """
import torch
from torch.distributed import init_process_group, destroy_process_group
from torch.nn.parallel import DistributedDataParallel

def train(rank, ranks):
    torch.cuda.set_device(rank)
    init_process_group('nccl', init_method='tcp://127.0.0.1:1', rank=rank, world_size=ranks)
    model = DistributedDataParallel(torch.nn.Linear(512, 512).to(rank), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters())
    more = torch.ones(rank + 1, 16 << 20, device=rank)
    for _ in range(4):
        model(torch.ones(8, 512, device=rank)).sum().backward()
        optimizer.step()
    destroy_process_group()

if __name__ == '__main__':
    torch.multiprocessing.spawn(train, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
"""


def test_ranks_that_a_script_spawns_itself_each_stand_for_their_own() -> None:
    Path('train.py').write_text(SPAWNS)
    shown = simulate('--gpu', 't4', '--devices', '2', '--', sys.executable, 'train.py', fresh=True)
    assert shown.stdout.startswith('simulated t4, rank 1 of 2: fits. Needs '), shown.stdout + shown.stderr
    assert {path.name[:5] for path in Path('simulated/train.t4').glob('*.pickle')} == {'rank0', 'rank1'}
    assert 'rank 1' in Path('simulated/train.t4/rank1.memory_snapshot.html').read_text()
