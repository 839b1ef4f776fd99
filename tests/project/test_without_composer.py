"""Commands that need no Composer, where it is not installed: here it is hidden."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import child_environment, simulated_gpu

pytestmark = pytest.mark.slow

HIDDEN = 'import sys; sys.modules["composer"] = None; from composer_memprof.__main__ import main; main()'
LOOP = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256, bias=False) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.ones(8, 256, device='cuda')).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, '-c', HIDDEN, *arguments]
    return subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=300, check=False)


def test_a_plain_loop_is_simulated_and_its_files_are_read() -> None:
    simulated_gpu()
    Path('train.py').write_text(LOOP)
    ran = run('simulate', '--gpu', 't4', '--folder', 'files', '--', 'python', 'train.py')
    assert ran.stdout.startswith('simulated t4: fits. Needs '), ran.stderr
    for arguments, words in (
        (('inspect', 'files'), 'train.py'),
        (('diff', 'files', 'files'), 'no change'),
        (('report', 'files'), 'The peak is '),
        (('ls', 'files'), 'memory_snapshot'),
        (('push', 'files'), 'nothing to upload'),
    ):
        done = run(*arguments)
        assert done.returncode == 0 and words in done.stdout + done.stderr, (arguments, done.stdout, done.stderr)


@pytest.mark.parametrize('arguments', [('callbacks',), ('train', 'quickstart'), ('plan', 'quickstart')])
def test_what_needs_composer_says_so_in_a_line(arguments: tuple[str, ...]) -> None:
    simulated_gpu()
    ran = run(*arguments)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (1, 1), ran.stderr
    assert 'Composer, which is not installed: pip install mosaicml' in ran.stderr
