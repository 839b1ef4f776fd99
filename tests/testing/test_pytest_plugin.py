"""The pytest plugin: marked tests run on a simulated GPU, and a test that fails says what filled the memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import child_environment, simulated_gpu

MARKED = """
import os, sys
import pytest

GiB = 1 << 30

@pytest.mark.simulated_gpu('a100-40gb', ranks=8)
@pytest.mark.parametrize('much', [True])
def test_a_step(gpu_memory, tmp_path, much):
    import torch
    assert os.environ['WORLD_SIZE'] == '8' and 'composer' not in sys.modules
    kept = torch.empty(GiB, dtype=torch.uint8, device='cuda')
    with gpu_memory() as used:
        first = torch.empty(GiB, dtype=torch.uint8, device='cuda')
        second = torch.empty(GiB, dtype=torch.uint8, device='cuda')
        del first
    assert used.left == GiB and used.reserved == 3 * GiB
    print('printed by the test')
    assert used.peak < 2 * GiB

@pytest.mark.simulated_gpu
def test_that_dies():
    os._exit(9)
"""


def run_pytest(test: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    Path('test_memory.py').write_text(test)
    command = [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider', *arguments]
    return subprocess.run(
        command, env=child_environment(**environment), capture_output=True, text=True, timeout=300, check=False
    )


def test_a_marked_test_runs_in_a_process_of_its_own_and_names_what_filled_the_memory() -> None:
    simulated_gpu()
    ran = run_pytest(MARKED, '-n', '2', '--junitxml=results.xml')
    assert ran.returncode == 1 and '2 failed' in ran.stdout, ran.stdout + ran.stderr
    assert '>       assert used.peak < 2 * GiB' in ran.stdout, "the test's own traceback"
    assert 'assert 3.0 GiB < 2.0 GiB' in ran.stdout and 'printed by the test' in ran.stdout
    lines = {number: line for number, line in enumerate(MARKED.splitlines(), start=1) if 'torch.empty' in line}
    for number in lines:
        assert f'1.0 GiB by test_memory.py:{number} test_a_step' in ran.stdout
    assert "the test's own process ended with code 9" in ran.stdout
    results = Path('results.xml').read_text()
    assert 'tests="2"' in results and 'test_a_step[True]' in results


def test_nothing_is_imported_where_no_test_is_marked() -> None:
    code = (
        'import sys\n'
        'def test_plain():\n'
        "    ours = {name for name in sys.modules if name.startswith('composer_memprof')}\n"
        "    assert not {'torch', 'composer', 'numpy'} & set(sys.modules)\n"
        "    assert not any('simulated_gpu' in name or 'analysis' in name for name in ours)\n"
    )
    ran = run_pytest(code)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize(
    ('mark', 'said'),
    [
        ("'a100-41gb'", "there is no GPU named 'a100-41gb'; the nearest is a100-40gb."),
        ('ranks=0', 'ranks must be a whole number from 1, not 0'),
        ('rnaks=8', "got an unexpected keyword argument 'rnaks'"),
        ("'t4', 8", "takes one GPU, not 't4', 8"),
    ],
)
def test_a_mistake_in_a_mark_is_one_line_before_a_test_runs(mark: str, said: str) -> None:
    ran = run_pytest(
        f'import pytest\n@pytest.mark.simulated_gpu({mark})\ndef test_it(): pass\ndef test_other(): pass\n'
    )
    (line,) = [line for line in ran.stderr.splitlines() if line.startswith('ERROR')]
    assert ran.returncode == 4 and line.startswith('ERROR: test_memory.py::test_it: simulated_gpu: ') and said in line
    assert 'passed' not in ran.stdout


def test_where_no_gpu_can_be_simulated_a_test_is_skipped_unless_one_is_required() -> None:
    code = 'import pytest\n@pytest.mark.simulated_gpu\ndef test_it(): pass\n'
    nowhere = {'XDG_CACHE_HOME': '/dev/null'}
    skipped = run_pytest(code, '-rs', **nowhere)
    assert skipped.returncode == 0 and 'no GPU can be simulated here: the simulated CUDA runtime' in skipped.stdout
    failed = run_pytest(code, '--simulated-gpu-required', **nowhere)
    assert failed.returncode == 1 and 'no GPU can be simulated here: the simulated CUDA runtime' in failed.stdout


def test_a_block_is_measured_only_on_a_gpu() -> None:
    ran = run_pytest('def test_it(gpu_memory): pass\n', CUDA_VISIBLE_DEVICES='')
    assert ran.returncode == 1
    assert "gpu_memory needs a GPU: mark the test with @pytest.mark.simulated_gpu('a100-40gb')" in ran.stdout
