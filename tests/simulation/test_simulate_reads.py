"""``simulate``: reads that nobody can know decide branches and end loops, and are named for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.simulated_runs import result_of, simulate

pytestmark = pytest.mark.slow

STEPS = """
import math, torch
f = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(f.parameters())

def norm(x):
    return x.norm().item()

def close_enough(error):
    return error < 1

for _ in range(3):
    y, t, kept = torch.randn(64, 256, device='cuda'), 0.0, []
    while t < 1:
        step = f(y)
        error = norm(step - y)  # 16
        t += 0.5 if close_enough(error) else 0.01
        kept.append(y := y + step)
    loss = torch.stack(kept).mean()
    print(f'{loss.item():.3f}')  # 20
    losses = []
    losses.append(float(loss))  # 22
    if not math.isfinite(loss.item()):  # 23
        break
    best = kept[0].cpu().numpy().max()  # 25
    while best > 0.4:
        best /= 2
    loss.backward()
    optimizer.step()
"""


def _reads(result: dict[str, Any], line: int) -> list[tuple[str, str]]:
    return [(read['what'], read['value']) for read in result['reads'] if read['place'].endswith(f'train.py:{line}')]


def test_a_number_is_named_where_the_script_decides_by_it_and_not_where_it_is_shown() -> None:
    Path('train.py').write_text(STEPS)
    result = result_of('--', 'python', 'train.py')
    assert _reads(result, 7) == [('branch', '0.9')], 'by a function that another one calls with what this one returns'
    assert [what for what, _ in _reads(result, 25)] == ['branch'], 'by way of an array of NumPy'
    assert [what for line in (20, 22, 23) for what, _ in _reads(result, line)] == ['number'] * 3
    shown = ' '.join(simulate('--', 'python', 'train.py').stdout.split())
    assert 'Guessed: train.py:7, called from train.py:7,' not in shown
    assert 'Guessed: train.py:7 read 0.9' in shown and 'train.py:20' not in shown and 'train.py:22' not in shown


LARGE = """
import torch
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loss = model(torch.randn(512, 512, device='cuda'))
on_host = loss.detach().cpu()
if on_host.max() > 1:
    print('large')
loss.mean().backward()
optimizer.step()
"""


def test_a_large_copy_to_the_host_is_named_where_the_script_decides_by_it() -> None:
    Path('train.py').write_text(LARGE)
    assert _reads(result_of('--', 'python', 'train.py'), 6) == [('branch', '262,144 zeros')]


LOOPS = """
import torch
f = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(f.parameters())

def by_comparison(x):
    new = f(x)
    while (new - x).abs().max() > 1e-4:
        x, new = new, f(new)
    return new

def by_number(x):
    while True:
        x, before = f(x), x
        if (x - before).norm().item() < 1e-4:
            return x

def by_state(x):
    state = {'converged': False}
    while not state['converged']:
        x, before = f(x), x
        if torch.dist(x, before).cpu() < 1e-3:
            state['converged'] = True
    return x

def rising(x):
    share = 0.0
    while share < 0.99:
        x = f(x)
        share = x.sigmoid().mean().item()
    return x

def by_token(x):
    with torch.no_grad():
        while True:
            x = f(x)
            if x[0].argmax().item() == 7:
                return x

def by_count(x):
    n = 1
    while n > 0:
        x = f(x)
        n = x.sum().long().item()
    return x

for _ in range(3):
    x = torch.randn(512, 64, device='cuda')
    for solve in (by_comparison, by_number, by_state, rising, by_token, by_count):
        x = solve(x)
    f(x).mean().backward()
    optimizer.step()
"""


def test_a_loop_that_waits_for_a_value_ends_and_is_named() -> None:
    Path('train.py').write_text(LOOPS)
    result = result_of('--time-limit', '200', '--', 'python', 'train.py')
    assert (result['verdict'], result['processes'][0]['steps']) == ('fits', 3)
    ends = {int(read['place'].rpartition(':')[2]): read['value'] for read in result['reads'] if read['what'] == 'loop'}
    assert ends == {
        8: 'False after 50 others',
        15: '1e-30 after 50 others',
        22: '1e-30 after 50 others',
        30: '1e-30 after 50 others',
        37: '0 after 2000 others',
        44: '0 after 50 others',
    }
    shown = ' '.join(simulate('--time-limit', '200', '--', 'python', 'train.py').stdout.split())
    assert 'Guessed: train.py:8 read False after 50 others, 3 times, so that a loop could end' in shown


MASKS = """
import torch
f = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(f.parameters())
for _ in range(3):
    y = f(torch.randn(1024, 256, device='cuda'))
    if (y > 1e4).any():
        raise ValueError('a check that finds no fault')
    mask = y.mean(1) > 0.7
    if (n := mask.sum()) == 0:
        continue
    kept = y[mask] if mask.any() else y[:0]
    wide = y > 0.7
    assert wide.sum() == len(y[wide]) and bool(wide.any()) == bool(len(y[wide])), 'a large mask'
    assert mask.float().sum() == n
    print(int(n), len(kept))
    kept.mean().backward()
    optimizer.step()
"""


def test_what_is_asked_of_a_mask_agrees_with_what_it_keeps() -> None:
    Path('train.py').write_text(MASKS)
    assert simulate('--', 'python', 'train.py').stdout.splitlines()[:3] == ['1024 1024'] * 3
    assert simulate('--kept', '0.25', '--', 'python', 'train.py').stdout.splitlines()[:3] == ['256 256'] * 3
    none = result_of('--kept', '0', '--', 'python', 'train.py')
    assert (none['exit_code'], none['verdict']) == (0, 'not seen'), 'no step: each batch is left out'


ENDS = """
import sys, torch
f = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(f.parameters())
loss = torch.tensor(100.0)
{loop}
    loss = f(torch.randn(64, 256, device='cuda')).square().mean()
    loss.backward()
    optimizer.step()
    {end}
"""


@pytest.mark.parametrize(
    ('loop', 'end'),
    [
        ('for _ in range(100):', 'if loss.item() < 2:\n        break'),
        ('while loss > 1:', 'loss = loss.item()'),
        ('for _ in range(100):', 'if not loss.item() >= 2: raise SystemExit'),
        ('for _ in range(100):', 'if loss.item() < 2: sys.exit()'),
    ],
)
def test_a_script_that_a_guess_may_have_ended_before_the_steps_asked_for_is_not_seen(loop: str, end: str) -> None:
    Path('train.py').write_text(ENDS.format(loop=loop, end=end))
    found = result_of('--', 'python', 'train.py')
    assert (found['verdict'], found['fits'], found['code']) == ('not seen', None, 2)
    assert (
        found['reason']
        == 'the command ended after 1 of 3 optimizer steps, by itself or by what was guessed at train.py:10'
    )
    assert result_of('--steps', '1', '--', 'python', 'train.py')['fits']


@pytest.mark.parametrize(
    'after', ['', 'for _ in range(20):\n    if f(torch.randn(1, 256, device="cuda")).mean().item() > 0.5: break\n']
)
def test_a_script_of_fewer_steps_than_asked_for_fits(after: str) -> None:
    Path('train.py').write_text(ENDS.format(loop='for _ in range(2):', end='print(loss.item() < 2)') + after)
    assert result_of('--', 'python', 'train.py')['fits'], 'a loop without a step ends no training'


def test_a_guess_may_end_the_loop_of_another_method() -> None:
    Path('train.py').write_text(METHODS)
    assert result_of('--', 'python', 'train.py')['verdict'] == 'not seen'


METHODS = """
import torch
f = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(f.parameters())

class Trainer:
    best, bad = 0.0, 0

    def check(self, accuracy):
        if accuracy.item() > self.best:
            self.best, self.bad = accuracy.item(), 0
        else:
            self.bad += 1

    def fit(self):
        while self.bad < 1:
            f(torch.randn(64, 256, device='cuda')).mean().backward()
            optimizer.step()
            self.check(f(torch.randn(64, 256, device='cuda')).mean())

Trainer().fit()
"""


BEAM = """
import torch
f = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(f.parameters())
for _ in range(4):
    tokens, score = [1], 0.0
    while tokens[-1] != 7 and len(tokens) < 200 and score > -1e9:
        values, places = f(torch.randn(1, 256, device='cuda')).topk(4)
        score, token = max(zip(values[0].tolist(), places[0].tolist()))
        tokens.append(token)
    f(torch.randn(64, 256, device='cuda')).mean().backward()
    optimizer.step()
"""


def test_two_reads_of_one_line_are_counted_apart() -> None:
    Path('train.py').write_text(BEAM)
    assert result_of('--', 'python', 'train.py')['verdict'] == 'fits'
