"""The simulated GPU: the GPU tests run on it, and so does what a training calls."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.analysis.snapshot.safe_pickle import load_plain
from composer_memprof.simulated_gpu.building import CannotSimulateError, library
from composer_memprof.simulated_gpu.devices import Device, find_device
from composer_memprof.simulated_gpu.environment import environment_with
from tests.conftest import simulated_gpu
from tests.support.processes import warm_python
from tests.support.processes.simulated_runs import QUIET
from tests.support.recordings.snapshots import REAL

pytestmark = pytest.mark.slow

#: The script that made the real snapshots.
TRUTH = REAL.parent.parent / 'truth'


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU: make test-gpu')
def test_the_gpu_tests_pass_on_it() -> None:
    tests = Path(__file__).with_name('test_gpu.py')
    command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-m', 'gpu', str(tests)]
    ran = warm_python.run(
        command,
        own_server=True,
        cwd=tests.parent.parent,
        env={**simulated_gpu('a100-80gb'), **QUIET},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-8000:]
    counts = {word: int(count) for count, word in re.findall(r'(\d+) (passed|skipped)', ran.stdout.splitlines()[-1])}
    assert counts['passed'] > 10 and counts['skipped'] == 2, ran.stdout[-2000:]


@pytest.mark.parametrize(('what', 'same', 'within'), [('forward', 3502, 0.0), ('fullstep', 3504, 0.003)])
def test_a_simulated_run_makes_the_events_of_a_real_gpus_snapshot(what: str, same: int, within: float) -> None:
    real, script = REAL / f'gpt_ctx128_{what}.pickle', TRUTH / 'gpt_2_7b.py'
    if not real.exists() or not script.exists():
        pytest.skip('the snapshots are no part of the project')
    subprocess.run(
        [sys.executable, script, '128', what, 'simulated.pickle'],
        # Newer torch frees cuBLAS' workspaces at once, unless it is told to keep them as before.
        env={**simulated_gpu(), 'TORCH_CUBLAS_WORKSPACE_CACHE': '1'},
        capture_output=True,
        timeout=300,
        check=True,
    )
    theirs, ours = allocator_events(real), allocator_events(Path('simulated.pickle'))
    assert ours[:same] == theirs[:same] and (within or len(ours) == len(theirs))
    peaks = [report_on(load_snapshot(path)).devices[0] for path in (real, Path('simulated.pickle'))]
    assert peaks[1].peak.bytes == pytest.approx(peaks[0].peak.bytes, rel=within)
    assert peaks[1].reserved_peak == pytest.approx(peaks[0].reserved_peak, rel=within)


def allocator_events(path: Path) -> list[tuple[str, int]]:
    """What the caching allocator did, in order: the action and its bytes."""
    kept = ('alloc', 'free_completed', 'segment_alloc', 'segment_free')
    trace = load_plain(path)['device_traces'][0]
    return [(event['action'], event['size']) for event in trace if event['action'] in kept]


def run_on_it(script: str, gpu: Device | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a script on a simulated GPU, with more variables in its environment."""
    simulated_gpu()  # skips where no GPU can be simulated
    variables = {**environment_with(gpu or find_device('h100-80gb'), outside=256 << 20), **more}
    return subprocess.run(
        [sys.executable, '-c', script], env=variables, capture_output=True, text=True, timeout=200, check=False
    )


READ_BACK = """
import os, torch
many = [torch.ones(8).cuda() for _ in range(2000)]
assert torch.tensor(16).cuda().item() == 16, 'the newest copies are known'
large = torch.ones(100_000).cuda()
assert large.cpu().sum() == 0, 'a large copy is not made'
small = torch.tensor([1., 2, 3, 4]).cuda()
assert small.tolist() == [1, 2, 3, 4], 'no kernel has run since'
part = torch.empty(100_000, device='cuda')
part[:4].copy_(torch.tensor([1., 2, 3, 4]))
part.copy_(torch.full((100_000,), 7.))
assert part[:4].tolist() == [0, 0, 0, 0], 'what a larger copy replaced'
os.environ.clear()
torch.empty(1 << 28, dtype=torch.uint8, device='cuda')
assert torch.cuda.mem_get_info()[1] == 85028896768, 'a script may clear its environment'
child = os.fork()
if child == 0:
    try:
        small.cpu()
    except RuntimeError as error:
        os._exit(0 if 'initialization error' in str(error) else 1)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0, 'a forked process has none of the device'
print('done')
"""


def test_what_the_host_reads_back_is_what_it_wrote_or_zeros_and_nothing_crashes() -> None:
    ran = run_on_it(READ_BACK)
    assert ran.stdout == 'done\n', ran.stderr[-2000:]


def test_a_gpu_smaller_than_the_allowance_has_no_memory_and_nothing_can_be_allocated_of_no_size() -> None:
    script = 'import torch; print(torch.empty(0, device="cuda").shape, torch.cuda.mem_get_info()); torch.ones(9).cuda()'
    ran = run_on_it(
        script,
        dataclasses.replace(find_device('a100-40gb'), total_memory=200_000_000),
        PYTORCH_NO_CUDA_MEMORY_CACHING='1',
    )
    assert ran.stdout == 'torch.Size([0]) (0, 200000000)\n' and 'out of memory' in ran.stderr, ran.stderr[-2000:]


def test_the_cache_may_have_a_space_in_its_path_and_lose_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'a cache'))
    script = 'import torch; print(torch.ones(9).cuda().device)'
    assert run_on_it(script).stdout == 'cuda:0\n'
    library().unlink()
    assert run_on_it(script).stdout == 'cuda:0\n'


def test_where_nothing_can_be_built_one_line_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'file').write_text('')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    with pytest.raises(CannotSimulateError, match=r'cannot be built in the cache: .*Not a directory'):
        library()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'a:b'))
    with pytest.raises(CannotSimulateError, match='has a colon in its path'):
        library()


LISTS = """
import os, re, torch
def in_use(device):
    try:
        held = torch.empty((device + 1) << 25, dtype=torch.uint8, device=device)
        torch.empty(1 << 50, device=device)
    except torch.OutOfMemoryError as error:
        return re.search('this process has (.*?) memory in use', str(error))[1]
for devices in ('0', '1', '1,0', '', '-1', '0,0', '0,7,1', '3'):
    if os.fork() == 0:
        os.environ['CUDA_VISIBLE_DEVICES'] = devices
        there = torch.cuda.device_count()
        assert there == torch._C._cuda_getDeviceCount() and torch.cuda.is_available() == (there > 0)
        print(f'{devices}:', *map(in_use, range(there)), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, devices
"""


def test_a_script_sees_the_devices_that_it_sets_as_far_as_there_are_any() -> None:
    environment = simulated_gpu(devices=2)
    ran = subprocess.run([sys.executable, '-c', LISTS], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [
        *('0: 32.00 MiB', '1: 32.00 MiB', '1,0: 32.00 MiB 64.00 MiB', ':', '-1:', '0,0:', '0,7,1: 32.00 MiB', '3:')
    ], ran.stderr
    lines = ran.stderr.splitlines()
    assert len(lines) == 5, 'one for each list that does not show what it names'
    assert lines[:2] == [f"simulated GPU: CUDA_VISIBLE_DEVICES='{none}' hides all GPUs" for none in ('', '-1')]
    assert "CUDA_VISIBLE_DEVICES='0,7,1' asks for GPU '7', and the simulated machine has 2 GPUs (--devices)" in lines[3]
