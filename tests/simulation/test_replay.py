"""A recording replayed on torch's own allocator, on a simulated GPU, with another setting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from composer_memprof.analysis.run_report.files import find_files
from composer_memprof.analysis.run_report.report import RunReport, report_on_run
from composer_memprof.report.text.sentences.run_advice import advice_details
from composer_memprof.simulation.replay import with_replayed_advice
from tests.conftest import simulated_gpu
from tests.support.processes.simulated_runs import run_on_a_server
from tests.support.recordings.snapshots import REAL

pytestmark = pytest.mark.slow

# Batches grow, so that no cached block serves the next one.
SCRIPT = """
import json, torch
torch.cuda.memory._record_memory_history()
for batch in range(1, 9):
    blocks = [torch.empty(batch * (20 + layer) << 20, dtype=torch.int8, device='cuda') for layer in range(6)]
    del blocks
torch.cuda.memory._dump_snapshot('grown.pickle')
print(json.dumps([torch.cuda.max_memory_reserved()]))
"""


def run_script(**settings: str) -> int:
    done = run_on_a_server(SCRIPT, environment={**simulated_gpu(), **settings})
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)[0])


def reported(path: Path) -> RunReport:
    return report_on_run(find_files([path]))


def test_a_replay_finds_what_a_setting_frees_to_the_byte() -> None:
    reserved = run_script()
    report = reported(Path('grown.pickle').rename('first.pickle'))
    expandable = run_script(PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True')
    (estimated,) = report.advice
    assert not estimated.replayed and estimated.frees != reserved - expandable
    replayed = with_replayed_advice(report)
    (found,) = replayed.advice
    assert (found.replayed, found.frees) == (True, reserved - expandable)
    ((_, frees, *_),) = advice_details(replayed)
    assert frees.startswith("A replay on torch's own allocator frees ")


def test_a_report_that_has_no_such_advice_is_left_as_it_is() -> None:
    run_script(PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True')
    report = reported(Path('grown.pickle'))
    assert report.advice == [] and with_replayed_advice(report) is report


@pytest.mark.skipif(not REAL.is_dir(), reason='the snapshots of a real GPU are not here')
def test_what_a_replay_of_a_real_gpus_recording_frees_is_what_a_simulated_run_frees() -> None:
    simulated_gpu()
    (found,) = with_replayed_advice(reported(REAL / 'gpt_ctx128_fullstep.pickle')).advice
    # The same training on a simulated GPU reserved 61,010,345,984 B, and 55,532,584,960 B with expandable segments.
    assert found.replayed and found.frees == pytest.approx(61_010_345_984 - 55_532_584_960, rel=0.05)
