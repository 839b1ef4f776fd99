"""How long a step takes, as ``simulate`` and ``plan`` say it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from composer_memprof.simulation.step_time import StepTime, time_in_words
from tests.support.processes.simulated_runs import plan_on_a_server, result_of, simulate

pytestmark = pytest.mark.slow

# Two large products a layer, in bfloat16; the third step's figures are judged, the next one is timed.
TRAINING = """
import sys, torch
model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192, bias=False) for _ in range(4))).to('cuda', torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    model(torch.zeros(8192, 8192, device='cuda', dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_simulate_says_how_long_a_step_takes_and_for_what() -> None:
    Path('train.py').write_text(TRAINING)
    found = result_of('--gpu', 'a100-80gb', '--', 'python', 'train.py', '9')
    time = found['time']
    products = (3 * 4 - 1) * 2 * 8192**3  # the input needs no gradient
    assert time['mfu'] == pytest.approx(products / (time['step_seconds'] * 312e12))
    assert 0.5 < time['mfu'] < 0.75
    assert sum(time['shares'].values()) == pytest.approx(1)
    assert time['shares']['matrix_products'] > 0.85 and time['shares']['optimizer'] > 0
    assert time['samples_per_second_per_gpu'] == pytest.approx(8192 / time['step_seconds'])
    assert time['unknown'] == {} and time['launches'] > 20
    shown = simulate('--gpu', 'a100-80gb', '--', 'python', 'train.py', '9').stdout
    assert f'{time["mfu"]:.0%} MFU' in ' '.join(shown.split())


def test_a_step_is_timed_after_those_whose_memory_is_judged_and_changes_none_of_their_figures() -> None:
    Path('train.py').write_text(TRAINING)
    timed, ended = (result_of('--gpu', 'a100-80gb', '--', 'python', 'train.py', steps) for steps in ('9', '3'))
    assert timed['time'] is not None and ended['time'] is None, 'no step comes after three'
    assert timed['processes'][0]['devices'] == ended['processes'][0]['devices']
    assert timed['code'] == 0


def test_a_command_that_fails_only_in_the_step_that_is_timed_has_not_failed() -> None:
    Path('train.py').write_text(TRAINING + 'raise SystemError("the data end")\n')
    found = result_of('--gpu', 'a100-80gb', '--', 'python', 'train.py', '4')
    assert (found['code'], found['verdict'], found['time']) == (0, 'fits', None)


def test_kernels_of_unknown_duration_are_named_with_their_share() -> None:
    time = StepTime(0.5, 100.0, 2.0, 0.4, {'matrix_products': 0.9, 'waiting_for_host': 0.1}, 200, {'aten::x in y': 3})
    first, second, third = time_in_words(time, 'l4')
    assert first == (
        'a step takes 500.0 ms, 100 tokens/s on each GPU, 40% MFU, never compared with a real one of this kind, '
        'may be off by a third'
    )
    assert second == 'its time: 90% matrix products, 10% waiting for the host'
    assert third.endswith('with their share of launches: aten::x in y (1.5%)')
    assert 'for GPTs on A100, 18 % for ResNet and compiled' in next(time_in_words(time, 'a100-40gb'))


def test_operators_that_compute_more_than_their_bytes_tell_are_named_and_ordinary_ones_are_not() -> None:
    script = TRAINING.replace('.sum().backward()', '.float().sort().values[:64, :64].square().sum().backward()')
    more = 'torch.linalg.svdvals(torch.zeros(64, 64, device="cuda")); torch.fft.fft(torch.zeros(64, device="cuda"))'
    Path('train.py').write_text(script.replace('    optimizer.step()', f'    {more}\n    optimizer.step()'))
    time = result_of('--gpu', 'a100-80gb', '--', 'python', 'train.py', '9')['time']
    assert {name.partition('.')[0] for name in time['unknown']} == {'aten::sort', 'aten::_linalg_svd', 'aten::_fft_r2c'}
    assert sum(time['unknown'].values()) < time['launches'] / 2


def test_a_plan_has_the_time_of_the_config_and_of_each_change() -> None:
    small = ('model.d_model=512', 'model.n_layers=4', 'train_loader.max_bytes=400000')
    found = json.loads(plan_on_a_server('--json', 'quickstart', *small, '--gpu', 'a100-80gb').stdout)
    base = found['outcome']['time']
    assert base['tokens_per_second_per_gpu'] == pytest.approx(16 * 128 / base['step_seconds'])
    times = {row['name']: row['outcome']['time']['step_seconds'] for row in found['changes']}
    assert times['checkpoint each Block'] > base['step_seconds'] and times['fused optimizer'] < base['step_seconds']


def test_a_compiled_model_is_timed_by_its_products_and_by_the_bytes_of_its_triton_kernels() -> None:
    layers = 'torch.nn.Linear(4096, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 4096), torch.nn.GELU()'
    Path('train.py').write_text(f"""
import torch
model = torch.nn.Sequential({layers}).to('cuda', torch.bfloat16)
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    compiled(torch.zeros(8192, 4096, device='cuda', dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""")
    time = result_of('--gpu', 'a100-80gb', '--trace', 'step.json', '--', 'python', 'train.py')['time']
    products = (3 * 2 - 1) * 2 * 8192 * 4096**2
    assert time['mfu'] == pytest.approx(products / (time['step_seconds'] * 312e12))
    assert time['unknown'] == {}
    events = json.loads(Path('step.json').read_text())['traceEvents']
    gelu = [event['dur'] for event in events if event.get('cat') == 'kernel' and 'gelu' in event['name']]
    once = 8192 * 4096 * 2 / (2039e9 * 0.85) * 1e6  # microseconds for one tensor
    assert gelu and 1.5 * once < min(gelu) and max(gelu) < 5 * once


def test_a_script_s_own_triton_kernel_is_named_and_takes_as_long_as_its_bytes() -> None:
    Path('train.py').write_text(
        f"""
import triton, triton.language as tl

@triton.jit
def twice(x, y, n, WIDTH: tl.constexpr):
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)
{TRAINING.replace('    optimizer.step()', '    twice[(65536,)](x, y, x.numel(), WIDTH=1024); optimizer.step()')}
""".replace('optimizer = ', 'x, y = (torch.zeros(1 << 26, device="cuda") for _ in range(2)); optimizer = ')
    )
    plain = TRAINING.replace(
        'optimizer = ', 'x, y = (torch.zeros(1 << 26, device="cuda") for _ in range(2)); optimizer = '
    )
    with_kernel = result_of('--gpu', 'a100-80gb', '--', 'python', 'train.py', '9')['time']
    Path('train.py').write_text(plain)
    without = result_of('--gpu', 'a100-80gb', '--', 'python', 'train.py', '9')['time']
    assert with_kernel['unknown'] == {'twice': 1} and without['unknown'] == {}
    more = with_kernel['step_seconds'] - without['step_seconds']
    assert more == pytest.approx(2 * (1 << 26) * 4 / (2039e9 * 0.85), rel=0.05)
