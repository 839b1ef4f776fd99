"""The line at the end of a run says, once, how many files were written, where, and the command that reads them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from composer_memprof import HostRSS, MemorySnapshot, SavedTensorsHook
from composer_memprof.analysis.run_report.report import report_on_paths
from composer_memprof.config import load
from composer_memprof.runner import Run
from tests.conftest import child_environment, entries, loader, make_trainer, train
from tests.support.processes import warm_python
from tests.support.processes.ranks import run_on_ranks
from tests.support.run_reports import said

JOB = """
from composer.utils import dist
from torch.utils.data import DataLoader
from composer_memprof import HostRSS, MemorySnapshot
from tests.conftest import Noise, make_trainer

data = Noise(96)
trainer = make_trainer(
    HostRSS(folder='{run_name}'),
    MemorySnapshot(folder='{run_name}'),
    train_dataloader=DataLoader(data, batch_size=8, sampler=dist.get_sampler(data)),
)
trainer.fit()
"""


def lines_in(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(r'composer_memprof: \d+ files?\b', line)]


def test_one_line_for_all_callbacks_of_a_trainer_after_the_last_file(capsys: pytest.CaptureFixture[str]) -> None:
    folder = 'runs/{run_name}'
    trainer = make_trainer(HostRSS(folder=folder), MemorySnapshot(folder=folder), SavedTensorsHook(folder=folder))
    trainer.fit()
    assert lines_in(capsys.readouterr().err) == []
    trainer.close()
    listed = entries(Path('runs'))
    assert len(listed) == 7 and {entry.status for entry in listed} == {'saved'}
    shown = capsys.readouterr()
    assert lines_in(shown.err) == ['composer_memprof: 7 files in runs/test-run; composer-memprof report runs/test-run']
    assert shown.out == '', 'what a script prints is its own'
    trainer.close()
    trainer.engine.close()
    assert capsys.readouterr().err == ''


def test_each_trainer_has_a_line_of_its_own_with_its_own_files(capsys: pytest.CaptureFixture[str]) -> None:
    callback = HostRSS(folder="my runs/it's {run_name}")
    first = make_trainer(callback, batches=2, run_name='a')
    first.fit()
    first.close()
    train(callback, MemorySnapshot(folder='/'.join([str(Path.cwd().parent), 'elsewhere'])), batches=6, run_name='b')
    one, two = lines_in(capsys.readouterr().err)
    assert one == """composer_memprof: 2 files in my runs/it's a; composer-memprof report 'my runs/it'"'"'s a'"""
    elsewhere = Path.cwd().parent / 'elsewhere'
    assert two.startswith(
        f"composer_memprof: 3 files in {elsewhere}, 2 files in my runs/it's b; composer-memprof report "
    )


def test_without_files_there_is_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    train(SavedTensorsHook(stages=['eval']), batches=2, eval_dataloader=loader(1), eval_interval='9ba')
    train(batches=2)
    assert lines_in(capsys.readouterr().err) == []


def test_files_that_are_removed_again_do_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    schedule = {'active': '1ba', 'every': '3ba'}
    train(SavedTensorsHook(schedule=schedule, num_artifacts_to_keep=1), batches=9)
    (line,) = lines_in(capsys.readouterr().err)
    assert line.startswith('composer_memprof: 2 files in ')


def test_a_stderr_that_is_closed_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, text: str) -> int:
            raise ValueError('I/O operation on closed file')

        def flush(self) -> None:
            raise BrokenPipeError

    trainer = make_trainer(HostRSS(), batches=2)
    trainer.fit()
    with monkeypatch.context() as patched:
        patched.setattr(sys, 'stderr', Closed())
        trainer.close()
    assert {entry.status for entry in entries(Path('test-run'))} == {'saved'}


@pytest.mark.parametrize('end', ['', "raise RuntimeError('a bug')"], ids=['never closed', 'failed'])
def test_a_run_that_nobody_closes_has_the_line_at_the_exit(end: str) -> None:
    Path('job.py').write_text(JOB + end)
    done = warm_python.run(
        [sys.executable, 'job.py'], env=child_environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == bool(end)
    assert lines_in(done.stderr) == ['composer_memprof: 5 files in test-run; composer-memprof report test-run']
    assert done.stderr.splitlines()[-1] == lines_in(done.stderr)[0]


def test_the_runner_whose_table_lists_the_files_has_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    small = ['max_duration=2ba', 'model.d_model=32', 'model.n_heads=2', 'train_loader.max_bytes=200000']
    small.append('progress_bar=false')
    run = Run(load('quickstart', small))
    run.train()
    assert run.result().artifacts
    assert lines_in(capsys.readouterr().err) == []
    train(HostRSS(), batches=2)
    assert len(lines_in(capsys.readouterr().err)) == 1, "a Trainer of the user's in the same process has one"


@pytest.mark.dist
def test_of_two_ranks_the_first_has_a_line_about_its_own_files() -> None:
    Path('job.py').write_text(JOB + 'trainer.close()\n')
    found = lines_in(run_on_ranks(Path('job.py').absolute()))
    assert found == ['composer_memprof: 5 files of rank 0 in test-run; composer-memprof report test-run']


def test_two_folders_of_one_run_are_one_run_for_report(capsys: pytest.CaptureFixture[str]) -> None:
    train(HostRSS(), MemorySnapshot(), batches=6)
    (line,) = lines_in(capsys.readouterr().err)
    assert line.endswith('; composer-memprof report test-run'), 'both folders are all that is in it'
    together, apart = (
        report_on_paths([(Path(folder), folder) for folder in folders])
        for folders in (['test-run'], ['test-run/memprof', 'test-run/torch_traces'])
    )
    assert said(together) == said(apart) and together.status == apart.status == {'saved': 5}
    Path('test-run/other').mkdir()
    train(HostRSS(), MemorySnapshot(), batches=6)
    (line,) = lines_in(capsys.readouterr().err)
    assert line.endswith('; composer-memprof report test-run/memprof test-run/torch_traces')
