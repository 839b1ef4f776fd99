"""The stand-in of flash-attn on a simulated GPU: what it allocates, when it is there, and how long it takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import simulated_gpu
from tests.support.processes.simulated_runs import MIB, on_simulated_gpu, result_of

NOTE = 'flash_attn is not installed: a stand-in allocated what flash-attn 2.7.4 allocates'

#: ``measure`` notes what a call leaves, and the peaks of forward and backward above what was there before.
MEASURE = """
def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device='cuda', dtype=dtype, requires_grad=True)

def measure(name, call):
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    kept, forward = torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before
    gradient = torch.zeros_like(result)
    torch.cuda.reset_peak_memory_stats()
    with_gradient = torch.cuda.memory_allocated()
    result.backward(gradient)
    found[name] = [kept, forward, torch.cuda.max_memory_allocated() - with_gradient]
"""


def measured(tmp_path: Path, code: str) -> dict[str, Any]:
    found = on_simulated_gpu(tmp_path, f'import flash_attn\n{MEASURE}\n{code}')
    assert found['notes'].splitlines().count(f'assumed: {NOTE}') == 1
    return found


def test_attention_allocates_what_the_package_does(tmp_path: Path) -> None:
    found = measured(
        tmp_path,
        """
from flash_attn import flash_attn_func, flash_attn_qkvpacked_func
q, k, v = (random(4, 512, 8, 64) for _ in range(3))
measure('equal heads', lambda: flash_attn_func(q, k, v, causal=True))
few_k, few_v = random(4, 512, 2, 64), random(4, 512, 2, 64)
measure('fewer keys', lambda: flash_attn_func(q, few_k, few_v))
measure('deterministic', lambda: flash_attn_func(q, k, v, deterministic=True))
qkv = random(4, 512, 3, 8, 64)
measure('packed', lambda: flash_attn_qkvpacked_func(qkv))
wide = [random(4, 512, 8, 100) for _ in range(3)]
measure('width 100', lambda: flash_attn_func(*wide))
long = [random(1, 4096, 1, 64) for _ in range(2)]
measure('split keys', lambda: flash_attn_func(random(1, 128, 1, 64), *long))
""",
    )
    q = 4 * 512 * 8 * 64 * 2
    logsumexp, state = 4 * 8 * 512 * 4, 512  # the allocator's smallest block
    sums, accumulated = 4 * 8 * 512 * 4, 4 * 512 * 8 * 64 * 4
    forward = q + logsumexp + state
    assert found['equal heads'] == [forward, forward, 3 * q + sums + accumulated]
    # keys and values have a gradient for each head of queries, which are summed then
    assert found['fewer keys'] == [forward, forward, q + 2 * q // 4 + sums + accumulated + 2 * q]
    multiprocessors, heads = 132, 4 * 8
    splits = -(-multiprocessors // heads)
    assert found['deterministic'][2] == 3 * q + sums + splits * accumulated
    assert found['packed'] == found['equal heads']
    padded = 4 * 512 * 8 * 104 * 2
    # queries, keys and values are padded and kept, and so is what comes out
    assert found['width 100'][0] == 4 * padded + logsumexp + state
    # the gradient is padded to the same width; 104 is computed as 128
    backward = 4 * padded + sums + 4 * 512 * 8 * 128 * 4
    assert backward <= found['width 100'][2] < backward + MIB  # torch splits no block for a rest of less
    out, floats = 128 * 64 * 2, 128 * 4
    splits = 16  # of 256 keys each
    assert found['split keys'][1] == 2 * out + floats + state + splits * (floats + 128 * 64 * 4)


def test_attention_of_several_lengths_allocates_by_tokens(tmp_path: Path) -> None:
    found = measured(
        tmp_path,
        """
from flash_attn import flash_attn_varlen_func
first = torch.tensor([0, 300, 400, 912], dtype=torch.int32, device='cuda')
q, k, v = random(912, 8, 64), random(912, 2, 64), random(912, 2, 64)
measure('lengths', lambda: flash_attn_varlen_func(q, k, v, first, first, 512, 512, causal=True))
""",
    )
    q, rows = 912 * 8 * 64 * 2, 912 + 128 * 3
    forward = q + 912 * 8 * 4 + 512
    backward = q + 2 * q // 4 + rows * 8 * 4 + rows * 8 * 64 * 4 + 2 * q
    # each block is rounded up to 512 B
    assert found['lengths'] == [
        pytest.approx(forward, abs=512),
        pytest.approx(forward, abs=512),
        pytest.approx(backward, abs=2048),
    ]


def test_a_fused_loss_keeps_its_logits_as_their_gradient(tmp_path: Path) -> None:
    found = measured(
        tmp_path,
        """
from flash_attn.losses.cross_entropy import CrossEntropyLoss
labels = torch.zeros(4096, dtype=torch.long, device='cuda')
logits = random(4096, 50000)
measure('in place', lambda: CrossEntropyLoss(reduction='none', inplace_backward=True)(logits * 1, labels))
measure('a copy', lambda: CrossEntropyLoss(reduction='none')(logits, labels))
""",
    )
    logits, floats = 4096 * 50000 * 2, 4096 * 4
    # losses, logsumexp, and squares that nobody keeps
    # the logsumexp is freed before the multiplication's gradient is made
    assert found['in place'] == [logits + 2 * floats, logits + 3 * floats, logits - floats]
    assert found['a copy'][:2] == [2 * floats, 3 * floats]
    assert logits <= found['a copy'][2] < logits + MIB


def test_norms_rotations_and_padding_allocate_what_the_package_does(tmp_path: Path) -> None:
    found = measured(
        tmp_path,
        """
from flash_attn.bert_padding import pad_input, unpad_input
from flash_attn.layers.rotary import RotaryEmbedding, apply_rotary_emb
from flash_attn.ops.triton.layer_norm import rms_norm_fn
x, weight = random(4, 256, 1024), random(1024, dtype=torch.float32)
measure('norm', lambda: rms_norm_fn(x, weight, None))
residual = random(4, 256, 1024, dtype=torch.float32)
measure('with a residual', lambda: rms_norm_fn(x, weight, None, residual))
table = torch.zeros(256, 32, device='cuda', dtype=torch.bfloat16)
heads = random(4, 256, 16, 64)
measure('rotation', lambda: apply_rotary_emb(heads, table, table))
packed = random(4, 256, 3, 16, 64)
positions = RotaryEmbedding(64, device='cuda')
positions(packed * 1)  # makes tables
measure('rotation in place', lambda: positions(packed * 1))
mask = torch.ones(4, 256, dtype=torch.bool, device='cuda')
tokens, indices, first, longest, _ = unpad_input(x, mask)
found['shapes'] = [list(tokens.shape), list(first.shape), longest, list(pad_input(tokens, indices, 4, 256).shape)]
""",
    )
    x, rows = 4 * 256 * 1024 * 2, 4 * 256 * 4
    sums, weight = 132 * 1024 * 4, 1024 * 4
    assert found['norm'] == [x + rows, x + rows, x + sums + weight]
    # what is normalized is kept in float32; its gradient is the residual's too, in float32
    assert found['with a residual'][0] == x + 2 * x + rows
    assert found['rotation'] == [x, x, 2 * x]  # backward copies the gradient first
    assert found['rotation in place'] == [3 * x, 3 * x, 3 * x]  # the multiplications'
    assert found['shapes'] == [[4 * 256, 1024], [5], 256, [4, 256, 1024]]


def test_what_the_kernels_refuse_is_refused(tmp_path: Path) -> None:
    found = on_simulated_gpu(
        tmp_path,
        """
from flash_attn import flash_attn_func
def refused(*tensors):
    try:
        flash_attn_func(*tensors)
    except RuntimeError as error:
        return str(error)
q = torch.zeros(1, 8, 6, 64, device='cuda')
found['type'] = refused(q, q, q)
half = q.half()
found['heads'] = refused(half, half[:, :, :4], half[:, :, :4])
found['width'] = refused(*[torch.zeros(1, 8, 6, 512, device='cuda').half()] * 3)
torch.cuda.get_device_capability = lambda device: (7, 5)
found['device'] = refused(half, half, half)
""",
    )
    assert found['type'] == 'flash-attn takes float16 and bfloat16, not torch.float32'
    assert '6 heads of queries' in found['heads'] and 'at most 256 elements' in found['width']
    assert found['device'] == 'FlashAttention only supports Ampere GPUs or newer.'


def imported(tmp_path: Path, code: str, **variables: str) -> str:
    ran = subprocess.run(
        [sys.executable, '-c', code],
        env={**simulated_gpu(), **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return (ran.stdout + ran.stderr).strip()


def test_an_installed_package_wins(tmp_path: Path) -> None:
    packages = tmp_path / 'packages'
    (packages / 'flash_attn').mkdir(parents=True)
    (packages / 'flash_attn/__init__.py').write_text('__version__ = "2.8.0"')
    code = 'import flash_attn, importlib.util; print(flash_attn.__version__, importlib.util.find_spec("flash_attn_2_cuda"))'
    environment = simulated_gpu()
    path = f'{environment["PYTHONPATH"]}{os.pathsep}{packages}'
    assert imported(tmp_path, code, PYTHONPATH=path) == '2.8.0 None'


def test_libraries_find_the_stand_in_and_its_version_unless_it_is_left_out(tmp_path: Path) -> None:
    code = (
        'import importlib.metadata, importlib.util; print(importlib.util.find_spec("flash_attn") is not None); '
        'print(importlib.metadata.version("flash_attn"))'
    )
    assert imported(tmp_path, code).split() == ['True', '2.7.4']
    assert imported(tmp_path, code, SIMULATED_GPU_STAND_INS='0').split()[0] == 'False'
    without = imported(tmp_path, 'import flash_attn', SIMULATED_GPU_STAND_INS='0')
    assert without.endswith("ModuleNotFoundError: No module named 'flash_attn'")


def test_on_a_real_machine_nothing_is_found(tmp_path: Path) -> None:
    code = 'import composer_memprof.simulated_gpu.child, importlib.util; print(importlib.util.find_spec("flash_attn"))'
    ran = subprocess.run(
        [sys.executable, '-c', code], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.stdout.strip() == 'None', ran.stderr


TRAINING = """
import sys, torch
from torch import nn
from flash_attn import flash_attn_func, flash_attn_varlen_func

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).unbind(2)
        if sys.argv[1] == 'flash':
            y = flash_attn_func(q, k, v, causal=True)
        elif sys.argv[1] == 'varlen':
            first = torch.arange(batch + 1, dtype=torch.int32, device='cuda') * length
            q, k, v = (each.flatten(0, 1) for each in (q, k, v))
            y = flash_attn_varlen_func(q, k, v, first, first, length, length, causal=True)
        else:
            q, k, v = (each.transpose(1, 2) for each in (q, k, v))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return x + self.out(y.reshape(batch, length, width))

model = nn.Sequential(*(Block(1024, 16) for _ in range(2))).to('cuda', torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    model(torch.randn(4, 2048, 1024, device='cuda', dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['flash', 'varlen'])
def test_its_time_and_flops_are_those_of_torchs_attention(kind: str) -> None:
    Path('train.py').write_text(TRAINING)
    flash, own = (result_of('--gpu', 'a100-80gb', '--', 'python', 'train.py', each) for each in (kind, 'torch'))
    assert NOTE in flash['assumed'] and NOTE not in own['assumed']
    assert flash['time']['step_seconds'] == pytest.approx(own['time']['step_seconds'], rel=0.02)
    assert flash['time']['mfu'] == pytest.approx(own['time']['mfu'], rel=0.02)
    assert flash['time']['unknown'] == {}


def test_a_note_is_written_once_whoever_wrote_it(tmp_path: Path) -> None:
    found = on_simulated_gpu(
        tmp_path,
        """
import ctypes
for number in range(60):
    ctypes.CDLL(None).simulated_gpu_assumed(f'made up, number {number % 5}'.encode())
""",
    )
    assert sorted(found['notes'].splitlines()) == [f'assumed: made up, number {number}' for number in range(5)]
