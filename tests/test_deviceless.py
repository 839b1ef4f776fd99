"""The CUDA paths where there is no GPU: the GPU tests, on torch's own allocator over a stand-in of CUDA's runtime."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import deviceless


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU: make test-gpu')
def test_the_gpu_tests_pass_over_the_stand_in(tmp_path: Path) -> None:
    try:
        environment = deviceless.environment(tmp_path)
    except deviceless.Unavailable as reason:
        pytest.skip(str(reason))
    tests = Path(__file__).with_name('test_gpu.py')
    command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-m', 'gpu', str(tests)]
    ran = subprocess.run(
        command, cwd=tests.parent.parent, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert ran.returncode == 0, ran.stdout[-8000:]
    counts = {word: int(count) for count, word in re.findall(r'(\d+) (passed|skipped)', ran.stdout.splitlines()[-1])}
    assert counts['passed'] > 10 and counts['skipped'] == (2 if deviceless.PROFILES else 4), ran.stdout[-2000:]
