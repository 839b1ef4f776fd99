"""``simulate``: loops that go on with either answer, as those of solvers that choose their step by an error do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes.simulated_runs import result_of

pytestmark = pytest.mark.slow

SOLVER = """
import torch
f = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.Adam(f.parameters())

def stage(y, h):
    k = f(y)
    new = f(y + h * k)
    return y + h * (k + new) / 2, (h * (new - k)).norm() / 2

def accepted(error):
    return error.item() < 1e-3

def solve(y, tolerance=1e-3):
    {start}
    while {time} < 1:
        new, error = stage(y, h)
        {choose}
    return y

for _ in range(4):
    solve(torch.randn(2048, 256, device='cuda')).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CHOICES = {
    'branch': ('if error < tolerance:', '    y, t, h = new, t + h, h * 1.5', 'else:', '    h *= 0.5'),
    'other way round': ('if not tolerance > error.item():', '    h /= 2', 'else:', '    t += h; y = new'),
    'skip': ('if float(error) > tolerance:', '    h *= 0.5', '    continue', 'y = new', 't += h'),
    'named': (
        'accepted = error.item() <= tolerance',
        'if accepted:',
        '    y = new',
        '    t += h',
        'h *= 1 if accepted else 0.5',
    ),
    'quotient': ('if tolerance / error.item() >= 1:', '    y, t = new, t + h', 'else:', '    h /= 2'),
    'function': ('if accepted(error):', '    y = new; t += h', 'else:', '    h /= 2'),
    'left below': (
        'if error.item() < tolerance:',
        '    y = new; now = t + h; t = now; done = now >= 1',
        '    if now >= 1: break',
        'else:',
        '    h /= 2',
    ),
    'factor': (
        'e = error.item()',
        'if e < tolerance:',
        '    y = new; t += h',
        'h *= min(2, max(0.2, 0.9 * (tolerance / e) ** 0.5))',
    ),
}


def _solver(*lines: str, start: str = 't, h = 0.0, 0.1', time: str = 't') -> str:
    return SOLVER.format(start=start, time=time, choose='\n        '.join(lines))


@pytest.mark.parametrize('lines', CHOICES.values(), ids=CHOICES)
def test_a_solver_accepts_its_steps_so_that_it_comes_to_its_end(lines: tuple[str, ...]) -> None:
    Path('train.py').write_text(_solver(*lines))
    found = result_of('--gpu', 't4', '--time-limit', '60', '--', 'python', 'train.py')
    assert (found['verdict'], found['processes'][0]['steps']) == ('fits', 3)
    assert any(read['sure'] == 2 and read['what'] == 'branch' for read in found['reads']), 'the answer is named'


def test_it_may_keep_its_time_in_a_dictionary_or_an_object() -> None:
    Path('train.py').write_text(
        _solver(
            'if error < tolerance:',
            "    y = new; state['t'] += h",
            'else:',
            '    h /= 2',
            start="state, h = {'t': 0.0}, 0.1",
            time="state['t']",
        )
    )
    assert result_of('--gpu', 't4', '--time-limit', '60', '--', 'python', 'train.py')['verdict'] == 'fits'


def test_where_neither_answer_is_known_to_be_the_better_one_each_is_given_in_turn() -> None:
    Path('train.py').write_text(
        _solver('ok = bool(error < tolerance)', 't = update(t, h, ok)', 'y = new', 'print(ok)').replace(
            'def solve',
            'def update(t, h, ok):\n    if ok:\n        t = t + h\n    else:\n        t = t + h / 2\n    return t\n\ndef solve',
        )
    )
    found = result_of('--gpu', 't4', '--time-limit', '60', '--', 'python', 'train.py')
    assert found['verdict'] == 'fits'


def test_a_loop_that_no_answer_ends_is_not_said_to_need_too_much() -> None:
    Path('train.py').write_text(
        _solver('y = new', 'small = error.item() < 1e-20', 'large = error.item() > 1e20', 't = small and large')
    )
    found = result_of('--gpu', 't4', '--time-limit', '100', '--', 'python', 'train.py')
    assert (found['verdict'], found['fits'], found['code'], found['need']) == ('not seen', None, 1, None)
    assert found['reason'] == 'no answer ends the loop at train.py:19, which waits for a value that is not known here'


CONVERGES = """
import torch
f = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(f.parameters())

def fixed_point(z):
    while True:
        z, before = f(z), z
        if (z - before).norm().item() < 1e-3:
            return z

for _ in range(4):
    z = torch.randn(64, 256, device='cuda')
    for _ in range(6):
        z = fixed_point(z).detach()
    f(z).mean().backward()
    {then}
    optimizer.step()
"""


def test_a_search_that_ends_each_time_hides_no_lack_of_memory() -> None:
    Path('train.py').write_text(CONVERGES.format(then='torch.empty(40 << 30, device="cuda")'))
    assert result_of('--gpu', 't4', '--', 'python', 'train.py')['verdict'] == 'does not fit'
    Path('train.py').write_text(CONVERGES.format(then=''))
    assert result_of('--gpu', 't4', '--', 'python', 'train.py')['verdict'] == 'fits'
