"""The first sentence of a report names the cause, the first change ends it; of a healthy run nothing is said to be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import composer_memprof
from composer_memprof import SavedTensorsHook
from composer_memprof.report.text.sentences.run_verdict import verdict
from tests.conftest import loader, train
from tests.problems.battery import HEALTHY, PROBLEMS, false_alarm, what_is_wrong_with_the_answer
from tests.support.run_reports import reported

pytestmark = pytest.mark.slow


@pytest.mark.parametrize('name', PROBLEMS)
def test_the_cause_is_in_the_first_sentence_and_its_change_is_the_first(name: str) -> None:
    assert what_is_wrong_with_the_answer(PROBLEMS[name]) == ''


@pytest.mark.parametrize('name', HEALTHY)
def test_nothing_is_wrong_with_a_healthy_run(name: str) -> None:
    assert false_alarm(HEALTHY[name]) == ''


def test_each_kind_of_recording_has_its_sentence() -> None:
    pytest.importorskip('memray')
    pytest.importorskip('viztracer')
    window = {'skip': '2ba', 'active': '2ba'}
    together = ['FSDPMemTracker', 'TorchProfiler', 'MemProfiler', 'Flops', 'HostRSS', 'StepTimes']
    for names in (together, ['SavedTensorsHook'], ['Memray'], ['VizTracer']):
        train(*(getattr(composer_memprof, name)(folder=name, schedule=window) for name in names), batches=6)
    of_eval = SavedTensorsHook(folder='eval', schedule=window, stages=['eval'])
    train(of_eval, batches=4, eval_dataloader=loader(4), eval_interval='1ep')
    said = {
        'FSDPMemTracker': "The model's memory peaks at",
        'TorchProfiler': 'One trace of torch_profiler: ',
        'MemProfiler': 'One file of mem_profiler: ',
        'Flops': 'FLOP',
        'HostRSS': 'Host memory peaks at',
        'StepTimes': 'The median batch takes',
        'SavedTensorsHook': 'Autograd saves',
        'Memray': 'Within a window of memray, the process allocates up to',
        'VizTracer': 'One trace of viztracer: ',
        'eval': 'One window of evaluation or prediction (saved_tensors_hook)',
    }
    for folder, words in said.items():
        report = reported(Path(folder))
        assert words in verdict(report)[0].text, folder
        assert all(not sentence.text.startswith('Not read') for sentence in verdict(report))
