"""``simulate --values``: what a script reads back is computed or guessed, and a guess that could change the figures is named."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes.simulated_runs import MIB, result_of, simulate

PADDED = """
import torch
lengths = torch.tensor([3, 700, 5]).cuda()
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
outputs = model(torch.randn(3, int(lengths.max()), 1024, device='cuda'))
kept = outputs[outputs > 2]
loss = kept.sum()
loss.backward()
optimizer.step()
assert torch.isfinite(loss)
print(tuple(outputs.shape), len(kept))
"""


def test_sizes_that_follow_from_the_scripts_own_values_are_right() -> None:
    Path('train.py').write_text(PADDED)
    assert simulate('--values', '--', 'python', 'train.py').stdout.startswith('(3, 700, 1024)')
    zeros = simulate('--', 'python', 'train.py')
    assert zeros.returncode == 1 or zeros.stdout.startswith('(3, 0, 1024)'), 'as without values'


def test_a_guess_that_decides_a_size_is_named_and_can_be_given() -> None:
    Path('train.py').write_text(PADDED)
    shown = simulate('--values', '--', 'python', 'train.py').stdout
    assert 'Guessed: train.py:7 kept 2150400 of 2150400 elements; --kept train.py:7=PART says which part' in ' '.join(
        shown.split()
    )
    given = result_of('--values', '--kept', 'train.py:7=0.25', '--', 'python', 'train.py')
    assert given['verdict'] == 'fits' and given['follows_values']
    (read,) = (read for read in given['reads'] if read['place'].endswith('train.py:7'))
    assert read['value'] == '537600 of 2150400'
    whole = result_of('--values', '--', 'python', 'train.py')
    assert given['processes'][0]['devices'][0]['allocated'] < whole['processes'][0]['devices'][0]['allocated'] - MIB


def test_a_part_for_one_line_is_refused_where_values_are_zeros() -> None:
    refused = simulate('--kept', 'train.py:7=0.25', '--', 'python', 'train.py')
    assert refused.returncode == 2
    assert refused.stderr == 'composer-memprof: --kept=train.py:7=0.25 is for one line, which needs --values\n'
    assert simulate('--kept', '7', '--', 'python', 'train.py').returncode == 2
