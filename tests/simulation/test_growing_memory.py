"""``simulate``: a training that keeps more memory with each step fits for some steps, and not for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_memprof.simulation.process.growth import growth
from tests.support.processes.simulated_runs import MIB, result_of, simulate

pytestmark = pytest.mark.slow

GROWING = """
import torch
f = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.Adam(f.parameters())
kept = []
for step in range(40):
    y = f(torch.randn(4096, 1024, device='cuda'))
    {keep}
    y.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print('done')
"""
KEEPS = 'kept.append(torch.empty(64 << 20, device="cuda"))'  # 256 MiB


def test_memory_that_grows_with_each_step_is_said_to_fit_for_so_many() -> None:
    Path('train.py').write_text(GROWING.format(keep=KEEPS))
    found = result_of('--gpu', 't4', '--', 'python', 'train.py')
    assert (found['verdict'], found['fits'], found['code']) == ('fits for some steps', None, 2)
    assert found['growth'] == 256 * MIB and found['reason'] == 'memory grows by 256.0 MiB with each step'
    assert found['processes'][0]['steps'] == 3, 'the figures are those of the steps that were asked for'
    left = found['available'] - found['processes'][0]['devices'][0]['reserved']
    assert found['steps_that_fit'] == 3 + left // (256 * MIB)
    shown = simulate('--gpu', 't4', '--', 'python', 'train.py')
    said = f'fits for about {found["steps_that_fit"]} steps: memory grows by 256.0 MiB with each step. Needs '
    assert said in ' '.join(shown.stdout.split()) and shown.returncode == 2


def test_so_many_steps_fit_as_run_until_memory_runs_out() -> None:
    Path('train.py').write_text(GROWING.format(keep='kept.append(torch.empty(512 << 20, device="cuda"))'))  # 2 GiB
    found = result_of('--gpu', 't4', '--', 'python', 'train.py')
    assert found['verdict'] == 'fits for some steps', 'also where memory runs out in the steps after those asked for'
    until = found['steps_that_fit']
    assert result_of('--gpu', 't4', '--steps', str(until), '--', 'python', 'train.py')['fits'] is not False
    assert result_of('--gpu', 't4', '--steps', '0', '--', 'python', 'train.py')['verdict'] == 'does not fit'


@pytest.mark.parametrize(
    'keep',
    [
        'kept = [y.detach().clone() for _ in range(min(step, 2))]',
        'kept.append(y.mean().detach())',
        'y = f(torch.randn(1024 * (4 + step * 7 % 5), 1024, device="cuda"))',
    ],
    ids=['once', 'losses', 'lengths'],
)
def test_what_does_not_grow_for_ever_fits(keep: str) -> None:
    Path('train.py').write_text(GROWING.format(keep=keep))
    found = result_of('--gpu', 't4', '--', 'python', 'train.py')
    assert (found['verdict'], found['steps_that_fit'], found['growth']) == ('fits', None, 0)


def test_a_command_that_came_to_its_end_fits_though_it_kept_more_with_each_step() -> None:
    Path('train.py').write_text(GROWING.format(keep=KEEPS).replace('40', '4'))
    Path('once.py').write_text(
        GROWING.format(keep='kept = [y.detach() for _ in range(min(step, 1))]').replace('40', '4')
    )
    assert result_of('--gpu', 't4', '--', 'python', 'once.py')['verdict'] == 'fits', 'it ends in the step that is timed'
    Path('six.py').write_text(GROWING.format(keep=KEEPS).replace('40', '6'))
    for command in (('--steps', '0', '--', 'python', 'train.py'), ('--', 'python', 'six.py')):
        whole = result_of('--gpu', 't4', *command)
        (process,) = whole['processes']
        assert (whole['verdict'], whole['steps_that_fit']) == ('fits', None)
        assert process['devices'][0]['allocated'] > process['steps'] * 256 * MIB, (
            'what all of its steps keep is counted'
        )
    assert process['steps'] == 6, 'also those after the three that were asked for'


def test_a_leak_that_a_guess_ended_is_said_to_grow_all_the_same() -> None:
    stops = GROWING.replace(
        '    optimizer.zero_grad()\n', '    optimizer.zero_grad()\n    if y.mean().item() < 0.89:\n        break\n'
    )
    Path('train.py').write_text(stops.format(keep=KEEPS))
    found = result_of('--gpu', 't4', '--', 'python', 'train.py')
    assert (found['verdict'], found['growth']) == ('fits for some steps', 256 * MIB)


def test_a_search_finds_what_fits_the_steps_that_were_run() -> None:
    sized = f'import sys\n{GROWING.format(keep=KEEPS)}'.replace('64 <<', 'int(sys.argv[1]) <<')
    Path('train.py').write_text(sized)
    found = result_of('--gpu', 't4', '--largest', '3', '--', 'python', 'train.py', '{}')
    assert found['largest'] == 3 and all(each['steps_that_fit'] > 3 for each in found['tried'])


@pytest.mark.parametrize(
    ('ends', 'bytes_a_step'),
    [
        ([10, 30, 50], 20),
        ([10, 30, 30], 10),
        ([10, 30, 30, 30], 0),
        ([10, 9, 12], 0),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 1),
        ([0, 0, 0, 0, 0, 4, 4, 8, 8, 12], 2),
        ([0, 5, 6, 7, 7, 7, 7, 7, 7, 7], 0),
    ],
)
def test_growth_is_what_the_last_steps_kept(ends: list[int], bytes_a_step: int) -> None:
    assert growth(ends) == bytes_a_step
