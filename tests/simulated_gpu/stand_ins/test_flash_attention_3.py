"""The stand-ins of flash-attn 3 and of the Hugging Face hub's kernels on a simulated GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import simulated_gpu
from tests.simulated_gpu.stand_ins.test_flash_attention import MEASURE, imported
from tests.support.processes.simulated_runs import on_simulated_gpu

NOTE = 'flash_attn_interface is not installed: a stand-in allocated what flash-attn 3 allocates'
SMALLEST = 512  # a block of torch's allocator


def block(size: int) -> int:
    return -(-size // SMALLEST) * SMALLEST


def measured(tmp_path: Path, code: str, **variables: str) -> dict[str, Any]:
    found = on_simulated_gpu(tmp_path, f'import flash_attn_interface\n{MEASURE}\n{code}', **variables)
    assert found['notes'].splitlines().count(f'assumed: {NOTE}') == 1
    return found


def test_attention_allocates_what_the_package_does(tmp_path: Path) -> None:
    found = measured(
        tmp_path,
        """
from flash_attn_interface import flash_attn_func, flash_attn_qkvpacked_func
q, k, v = (random(4, 512, 8, 128) for _ in range(3))
measure('whole', lambda: flash_attn_func(q, k, v))
measure('causal', lambda: flash_attn_func(q, k, v, causal=True))
measure('window', lambda: flash_attn_func(q, k, v, causal=True, window_size=(64, 0)))
few = [random(4, 512, 2, 128) for _ in range(2)]
measure('fewer keys', lambda: flash_attn_func(q, *few, causal=True))
measure('deterministic', lambda: flash_attn_func(q, *few, causal=True, deterministic=True))
measure('split', lambda: flash_attn_func(q, k, v, num_splits=3))
qkv, beside = random(4, 512, 3, 8, 128), random(4, 512, 12, 128)
measure('packed', lambda: flash_attn_qkvpacked_func(qkv, causal=True))
measure('beside each other', lambda: flash_attn_qkvpacked_func(beside, num_heads_q=8, causal=True))
narrow = [random(4, 512, 8, 72) for _ in range(3)]
measure('width 72', lambda: flash_attn_func(*narrow, causal=True))
""",
    )
    q, logsumexp = 4 * 512 * 8 * 128 * 2, 4 * 8 * 512 * 4
    kept = q + logsumexp
    # blocks of 80 queries without a mask, of 64 with one: 7 and 8 of them; a lock for each block, sequence and head
    sums, accumulated, locks = 4 * 8 * 560 * 4, 4 * 8 * 560 * 128 * 4, block(7 * 4 * 8 * 4)
    backward = 3 * q + 2 * sums + accumulated + locks
    # not masked, nothing is scheduled; numbers for the scheduler take a smallest block and are gone after forward
    assert found['whole'] == [kept, kept, backward]
    sums, accumulated, locks = 4 * 8 * 512 * 4, 4 * 8 * 512 * 128 * 4, block(8 * 4 * 8 * 4)
    backward = 3 * q + 2 * sums + accumulated + locks
    assert found['causal'] == found['window'] == [kept, kept + SMALLEST, backward]
    # keys' gradients are summed over their group in float32
    few, of_keys = 4 * 512 * 2 * 128 * 2, 4 * 2 * 512 * 128 * 4
    grouped = q + 2 * few + 2 * sums + accumulated + 2 * of_keys
    assert found['fewer keys'] == [kept, kept + SMALLEST, grouped + locks]
    # four blocks of 128 keys
    assert found['deterministic'][2] == grouped + locks + 2 * block(4 * 4 * 2 * 4)
    assert found['split'][:2] == [kept, kept + 3 * 4 * 8 * 512 * (128 + 1) * 4]
    # one gradient of all; that of what was packed is made first
    assert found['packed'] == found['causal']
    assert found['beside each other'][2] == grouped + locks
    # computed as 96 wide
    q = 4 * 512 * 8 * 72 * 2
    assert found['width 72'][2] == pytest.approx(3 * q + 2 * sums + 4 * 8 * 512 * 96 * 4 + locks, abs=1 << 20)


def test_attention_of_several_lengths_allocates_by_tokens(tmp_path: Path) -> None:
    found = measured(
        tmp_path,
        """
from flash_attn_interface import flash_attn_varlen_func
first = torch.tensor([0, 300, 400, 912, 1000], dtype=torch.int32, device='cuda')
q, k, v = random(1000, 8, 64), random(1000, 8, 64), random(1000, 8, 64)
call = lambda *tensors: flash_attn_varlen_func(*tensors, first, first, 512, 512, causal=True)
measure('lengths', lambda: call(q, k, v))
measure('compiled', lambda: torch.compile(call, fullgraph=True, backend='aot_eager')(q, k, v))
""",
    )
    q, logsumexp = 1000 * 8 * 64 * 2, block(1000 * 8 * 4)
    # each of four sequences may be a block of 128 queries longer: 1,512 tokens, in 12 blocks 1,536
    sums, accumulated, locks = 8 * 1536 * 4, 8 * 1536 * 64 * 4, block(4 * 4 * 8 * 4)
    kept, backward = q + logsumexp, 3 * q + 2 * sums + accumulated + locks
    assert found['lengths'] == [kept, kept + SMALLEST, backward]
    assert found['compiled'][:2] == [pytest.approx(kept, abs=2048), pytest.approx(kept, abs=2048)]
    # this backend copies the gradients that the operator writes into, as it would with the package
    assert found['compiled'][2] == pytest.approx(backward + 3 * q, abs=2048)


def test_what_the_kernels_refuse_is_refused(tmp_path: Path) -> None:
    found = on_simulated_gpu(
        tmp_path,
        """
from flash_attn_interface import flash_attn_func
def refused(*tensors, **settings):
    try:
        flash_attn_func(*tensors, **settings)
    except RuntimeError as error:
        return str(error)
q = torch.zeros(1, 8, 6, 64, device='cuda')
found['type'] = refused(q, q, q)
half = q.half()
found['heads'] = refused(half, half[:, :, :4], half[:, :, :4])
found['width'] = refused(*[torch.zeros(1, 8, 6, 512, device='cuda').half()] * 3)
found['splits'] = refused(half, half, half, num_splits=0)
torch.cuda.get_device_capability = lambda device: (7, 5)
found['device'] = refused(half, half, half)
""",
    )
    assert 'torch.float32' in found['type'] and '(1, 8, 6, 64), (1, 8, 4, 64)' in found['heads']
    assert 'at most 256 elements' in found['width'] and 'num_splits of at least 1' in found['splits']
    assert found['device'] == 'FlashAttention only supports Ampere GPUs or newer.'


HUB = """
from kernels import get_kernel, has_kernel
name = 'kernels-community/flash-attn3'
kernel = get_kernel(name, version=1)
print(kernel.flash_attn_func is kernel.flash_attn_interface.flash_attn_func, has_kernel(name), has_kernel('a/b'))
get_kernel('a/b')
"""


def test_the_hubs_kernel_is_known_and_others_are_refused(tmp_path: Path) -> None:
    found = imported(tmp_path, HUB)
    assert found.startswith('True True False')
    assert found.endswith(
        'FileNotFoundError: kernels is not installed, and its stand-in does not know a/b, '
        'but kernels-community/flash-attn3, varunneal/flash-attention-3'
    )


@pytest.mark.parametrize('module', ['flash_attn_interface', 'kernels'])
def test_they_can_be_left_out_and_an_installed_package_wins(tmp_path: Path, module: str) -> None:
    without = imported(tmp_path, f'import {module}', SIMULATED_GPU_STAND_INS='0')
    assert without.endswith(f"ModuleNotFoundError: No module named '{module}'")
    (tmp_path / 'packages').mkdir()
    (tmp_path / 'packages' / f'{module}.py').write_text('get_kernel = flash_attn_func = "installed"')
    path = f'{simulated_gpu()["PYTHONPATH"]}{os.pathsep}{tmp_path / "packages"}'
    code = f'import flash_attn, {module}; print({module}.__dict__.get("get_kernel"))'
    assert imported(tmp_path, code, PYTHONPATH=path) == 'installed'
