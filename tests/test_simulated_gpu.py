"""The simulated GPU: the GPU tests run on it, and so does what a training calls."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from composer_memprof.simulated_gpu.building import CannotSimulateError
from composer_memprof.simulated_gpu.devices import find_device
from composer_memprof.simulated_gpu.environment import environment_with


def environment(gpu: str = 'a100-80gb') -> dict[str, str]:
    try:
        return environment_with(find_device(gpu))
    except CannotSimulateError as reason:
        pytest.skip(str(reason))


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU: make test-gpu')
def test_the_gpu_tests_pass_on_it() -> None:
    tests = Path(__file__).with_name('test_gpu.py')
    command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-m', 'gpu', str(tests)]
    ran = subprocess.run(
        command, cwd=tests.parent.parent, env=environment(), capture_output=True, text=True, timeout=400, check=False
    )
    assert ran.returncode == 0, ran.stdout[-8000:]
    counts = {word: int(count) for count, word in re.findall(r'(\d+) (passed|skipped)', ran.stdout.splitlines()[-1])}
    assert counts['passed'] > 10 and counts['skipped'] == 2, ran.stdout[-2000:]
