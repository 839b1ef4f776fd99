"""Snapshots of other programs: phases and optimizer steps from torch's annotations and from stacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot, read_snapshot
from tests.analysis.snapshot.test_analysis_foreign import ADAM, BACKWARD_THREAD, FORWARD, at
from tests.conftest import child_environment, simulated_gpu
from tests.support.recordings.snapshots import FRAME, REAL, event, freed, plain, segment

BACKWARD = [at('_tensor.py', 'backward'), FRAME]


def annotated(name: str, begin: int, end: int) -> list[dict[str, Any]]:
    """The rows that torch writes for a ``record_function``."""
    return [
        {'stage': stage, 'name': name, 'device': 0, 'time_us': time} for stage, time in (('START', begin), ('END', end))
    ]


STEP, ZERO_GRADS = 'Optimizer.step#AdamW.step', 'Optimizer.zero_grad#AdamW.zero_grad'


@pytest.mark.parametrize(
    ('frames', 'time', 'phase'),
    [
        ([FRAME], 15, 'zero_grad'),
        ([FRAME], 25, 'dataloader'),
        ([FRAME], 35, 'optimizer'),
        (FORWARD, 35, 'forward'),  # a closure that the optimizer calls
        ([FRAME], 45, 'inner'),  # of the user's own, the innermost
        ([FRAME], 59, 'outer'),
        ([FRAME], 65, ''),
        (ADAM, 65, 'optimizer'),
        (BACKWARD, 65, 'backward'),
        (BACKWARD_THREAD, 65, 'backward'),  # of a GPU, where other events have stacks
    ],
)
def test_the_phase_of_a_peak_comes_from_its_stack_and_else_from_torchs_annotations(
    frames: Any, time: int, phase: str
) -> None:
    content = plain(
        event('alloc', 512, 10, time=1), event('alloc', 1024, 10, frames, time), segments=[segment((512, 10))]
    )
    content['external_annotations'] = [
        *annotated(ZERO_GRADS, 10, 20),
        *annotated('enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__', 20, 30),
        *annotated(STEP, 30, 40),
        {'stage': 'START', 'name': 'outer', 'device': 0, 'time_us': 40},
        *annotated('inner', 42, 50),
        {'stage': 'END', 'name': 'outer', 'device': 0, 'time_us': 60},
    ]
    (device,) = report_on(read_snapshot(content)).devices
    assert (device.peak.batch, device.peak.phase) == (None, phase)


def test_a_range_that_began_before_the_recording_or_has_not_ended_counts() -> None:
    for rows in ([annotated(STEP, 0, 9)[1]], [annotated(STEP, 3, 0)[0]]):
        content = plain(event('alloc', 512, 10, time=5)) | {'external_annotations': rows}
        (device,) = report_on(read_snapshot(content)).devices
        assert device.peak.phase == 'optimizer'


def test_a_failure_at_the_end_is_in_what_had_not_ended() -> None:
    content = plain(event('alloc', 512, 10, FORWARD, time=5), oom={'requested': 7})
    (oom,) = report_on(read_snapshot(content)).ooms
    assert oom.phase == '', 'after its last event more may have run'
    content['external_annotations'] = [*annotated('forward', 1, 6), annotated(STEP, 7, 8)[0]]
    (oom,) = report_on(read_snapshot(content)).ooms
    assert oom.phase == 'optimizer'


def test_our_own_phases_count_more_than_torchs() -> None:
    content = plain(event('alloc', 512, 10, time=5), phases=[[0, 7, 'forward']])
    content['external_annotations'] = annotated(STEP, 3, 9)
    (device,) = report_on(read_snapshot(content)).devices
    assert (device.peak.batch, device.peak.phase) == (7, 'forward')


@pytest.mark.parametrize('rows', [7, [7], [{}], [{'stage': [], 'name': 'x', 'time_us': 1}], [{'time_us': -1}]])
def test_annotations_of_another_form_are_left_out(rows: Any) -> None:
    snapshot = read_snapshot(plain(event('alloc', 512, 10, time=5)) | {'external_annotations': rows})
    assert snapshot.annotations is None


def test_what_grows_in_every_optimizer_step_is_named_without_phases_of_ours() -> None:
    def steps(leak: int) -> dict[str, Any]:
        events, rows = [], []
        for number in range(4):
            time = 100 * number
            events.append(event('alloc', 512, 100, FORWARD, time + 1))
            if leak:
                events.append(event('alloc', 4096 + 512 * number, leak, [{**FRAME, 'name': 'leaky'}], time + 2))
            events += freed(512, 100, BACKWARD, time + 51)
            rows += annotated(STEP, time + 60, time + 70)
        return plain(*events) | {'external_annotations': rows}

    (device,) = report_on(read_snapshot(steps(0))).devices
    assert (device.growth.steady, device.growth.unit) == (True, 'optimizer step')
    (device,) = report_on(read_snapshot(steps(10))).devices
    assert (device.growth.batches, device.growth.at_end) == ([1, 2, 3, 4], [10, 20, 30, 40])
    assert [(place.per_batch, place.frames[0].name) for place in device.growth.growing] == [(10, 'leaky')]
    assert device.growth.held_bytes == 30, 'what the last step holds may still be freed'


def test_annotations_of_a_real_gpu_are_read() -> None:
    path = REAL / 'gpt_ctx128_fullstep.pickle'
    if not path.exists():
        pytest.skip('the snapshots are no part of the project')
    snapshot = load_snapshot(path)
    assert snapshot.annotations is not None and len(snapshot.annotations) == 2
    (device,) = report_on(snapshot).devices
    assert device.peak.phase == 'optimizer'


STEPS = """
import pickle, torch
torch.cuda.memory._record_memory_history()
layer = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.AdamW(layer.parameters())
kept = []
for number in range(4):
    kept.append(torch.empty(1 << 20, dtype=torch.uint8, device='cuda'))
    layer(torch.ones(8, 512, device='cuda')).sum().backward()
    with torch.profiler.record_function('mine'):
        if number == 3:
            big = torch.empty(64 << 20, dtype=torch.uint8, device='cuda')
            try:
                torch.empty(1 << 40, dtype=torch.uint8, device='cuda')
            except torch.OutOfMemoryError:
                pass
            del big
    optimizer.step()
    optimizer.zero_grad()
pickle.dump(torch.cuda.memory._snapshot(), open('x.pickle', 'wb'))
"""


def test_the_annotations_of_this_torch_are_read() -> None:
    environment = {**child_environment(), **simulated_gpu()}
    Path('steps.py').write_text(STEPS)
    ran = subprocess.run([sys.executable, 'steps.py'], env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    report = report_on(load_snapshot(Path('x.pickle')))
    (device,), (oom,) = report.devices, report.ooms
    assert (device.peak.phase, oom.phase) == ('mine', 'mine')
    assert (device.growth.unit, device.growth.batches, device.growth.steady) == ('optimizer step', [1, 2, 3, 4], False)
    assert [place.per_batch for place in device.growth.growing] == [1 << 20]
