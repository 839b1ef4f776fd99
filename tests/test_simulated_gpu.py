"""The simulated GPU: the GPU tests run on it, and so does what a training calls."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.analysis.snapshot.safe_pickle import load_plain
from composer_memprof.simulated_gpu.building import CannotSimulateError
from composer_memprof.simulated_gpu.devices import find_device
from composer_memprof.simulated_gpu.environment import environment_with
from tests.snapshots import REAL

#: The script that made the real snapshots.
TRUTH = REAL.parent.parent / 'truth'


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


@pytest.mark.parametrize(('what', 'same', 'within'), [('forward', 3502, 0.0), ('fullstep', 3504, 0.003)])
def test_a_simulated_run_makes_the_events_of_a_real_gpus_snapshot(what: str, same: int, within: float) -> None:
    real, script = REAL / f'gpt_ctx128_{what}.pickle', TRUTH / 'gpt_2_7b.py'
    if not real.exists() or not script.exists():
        pytest.skip('the snapshots are no part of the project')
    subprocess.run(
        [sys.executable, script, '128', what, 'simulated.pickle'],
        env=environment('h100-80gb'),
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
