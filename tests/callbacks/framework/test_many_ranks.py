"""Many ranks: whole files from a sample of them and summaries from all, and a folder for each."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.core import Callback, State
from composer.loggers import Logger

from composer_memprof import FSDPMemTracker, HostRSS, MemorySnapshot, StepTimes
from composer_memprof.analysis.run_report.files import find_files
from composer_memprof.analysis.run_report.report import report_on_run
from composer_memprof.artifacts.naming.names import folder_of
from composer_memprof.callbacks.framework.rank_sample import parse_files_on_ranks
from tests.conftest import child_environment, entries, make_trainer, train
from tests.support.made_up_runs import run_of, snapshot_summary, write_files
from tests.support.processes import warm_python
from tests.support.recordings.snapshots import event, plain, saved

WITH_SUMMARY = [MemorySnapshot, FSDPMemTracker, HostRSS, StepTimes]
each_with_a_summary = pytest.mark.parametrize('make', WITH_SUMMARY, ids=lambda make: make.__name__)


def chosen(value: Any, world_size: int) -> list[int]:
    sample = parse_files_on_ranks(value)
    return [rank for rank in range(world_size) if sample.has(rank, world_size)]


def test_ranks_are_named_from_either_end_or_each_nth() -> None:
    assert chosen(None, 3) == [0, 1, 2]
    assert chosen([], 3) == [] and chosen({}, 3) == []
    assert chosen(2, 4) == [2] and chosen(-1, 4) == [3]
    assert chosen([0, -1], 1) == [0] and chosen((0, -1), 1024) == [0, 1023]
    assert chosen({'every': 64}, 200) == [0, 64, 128, 192]
    assert chosen({'ranks': [0, -1], 'every': 512}, 1024) == [0, 512, 1023]


@pytest.mark.parametrize(
    ('value', 'words'),
    [
        ('0', "files_on_ranks must be a list of ranks; -1 is the last one, not '0'"),
        ([0, True], r'files_on_ranks must be a list of ranks; .* not \[0, True\]'),
        ({'ranks': 1.5}, r'files_on_ranks\.ranks must be a list of ranks'),
        ({'every': 0}, r'files_on_ranks\.every must be a whole number from 1, not 0'),
        ({'evry': 64}, r"files_on_ranks\.evry is unknown; allowed are ranks, every; did you mean 'every'"),
    ],
)
@each_with_a_summary
def test_a_value_that_is_none_is_refused_at_construction(make: Any, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f'{make.__name__}: {words}'):
        make(files_on_ranks=value)


@each_with_a_summary
def test_ranks_beyond_the_run_are_refused_when_the_trainer_is_made(make: Any) -> None:
    with pytest.raises(ValueError, match=r'files_on_ranks=\[-3, 4\] are beyond this run, which has ranks 0 to 0'):
        make_trainer(make(files_on_ranks=[0, -1, 4, -3]))


@each_with_a_summary
def test_a_rank_outside_of_the_sample_writes_the_summary_alone_under_the_name_that_it_has_beside_the_whole_file(
    make: Any,
) -> None:
    train(make(folder='whole'), batches=6)
    train(make(folder='summary', files_on_ranks=[]), batches=6)
    listed = entries(Path('summary'))
    assert [entry.kind for entry in listed] == [f'{make.kind}.summary']
    assert {path.name for path in Path('summary').iterdir()} == {listed[0].path, 'rank0.manifest.jsonl'}
    assert listed[0].path in {entry.path for entry in entries(Path('whole'))}
    alone, beside = (json.loads(Path(folder, listed[0].path).read_text()) for folder in ('summary', 'whole'))
    assert set(alone) == set(beside)


@each_with_a_summary
def test_a_rank_of_the_sample_writes_all(make: Any) -> None:
    train(make(folder='whole'), batches=6)
    train(make(folder='sample', files_on_ranks={'ranks': [-1], 'every': 64}), batches=6)
    assert {entry.path for entry in entries(Path('sample'))} == {entry.path for entry in entries(Path('whole'))}


class RunsOut(Callback):
    """Memory runs out in the seventh batch."""

    def before_forward(self, state: State, logger: Logger) -> None:
        if state.timestamp.batch == 6:
            raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 GiB.')


def test_memory_that_runs_out_leaves_a_whole_snapshot_on_any_rank() -> None:
    trainer = make_trainer(MemorySnapshot(on_oom=True, files_on_ranks=[]), RunsOut())
    with pytest.raises(torch.OutOfMemoryError):
        trainer.fit()
    trainer.close()
    of_snapshots = {entry.path.partition('.memory_snapshot')[2] for entry in entries(Path('test-run'))}
    assert of_snapshots == {'.summary.json', '.oom.pickle', '.oom.html', '.oom.summary.json'}


def test_a_run_of_summaries_alone_is_reported() -> None:
    train(MemorySnapshot(folder='run', files_on_ranks=[]), HostRSS(folder='run', files_on_ranks=[]))
    report = report_on_run(find_files([Path('run')]))
    assert report.lead is None and report.ranks == [0] and report.unreadable == []
    assert set(report.contents) == {'memory_snapshot', 'host_rss'}


# -- a folder for each rank -------------------------------------------------------------------------------------------


def in_folders(ranks: int, store: Path) -> Path:
    """A run with a folder for each rank, of whose files those of rank 1 were not uploaded."""
    for rank in range(ranks):
        folder = run_of(Path('run', f'rank{rank}'), 0)
        remote = f'file://{store}/rank{rank}.9.memory_snapshot.pickle'
        summary = f'rank{rank}.9.memory_snapshot.summary.json'
        write_files(folder, rank, {'memory_snapshot.summary': (summary, snapshot_summary(rank, 1 + (rank == 2)))})
        name = f'rank{rank}.9.memory_snapshot.pickle'
        status = 'saved' if rank == 1 else 'uploaded'
        write_files(folder, rank, {'memory_snapshot': (name, '')}, remote=remote, status=status)
        saved(plain(event('alloc', 512, (rank + 1) << 20, time=1)), str(folder / name))
    return Path('run')


def command(*arguments: str) -> str:
    done = warm_python.run(
        [sys.executable, '-m', 'composer_memprof', *arguments],
        env=child_environment(COLUMNS='160'),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_command_reads_a_run_with_a_folder_for_each_rank(tmp_path: Path) -> None:
    run = str(in_folders(4, tmp_path / 'store'))
    assert command('report', run).startswith('made-up: 4 ranks\n  Rank 2 differs')
    page = Path(run, 'report.html').read_text()
    assert 'href="rank3/rank3.9.memory_snapshot.summary.json"' in page
    assert {artifact['entry']['rank'] for artifact in json.loads(command('ls', run, '--json'))} == {0, 1, 2, 3}
    assert 'run/rank3/rank3.9.memory_snapshot.pickle\n' in command('inspect', run, '--rank', '3')
    pushed = json.loads(command('push', run, '--json', '--allow-local', str(tmp_path / 'store')))
    assert pushed['path'] == 'run/rank1/rank1.9.memory_snapshot.pickle', pushed
    assert [path.name for path in (tmp_path / 'store').iterdir()] == ['rank1.9.memory_snapshot.pickle']


def test_a_folder_for_each_rank_is_a_format_string() -> None:
    assert [folder_of('{run_name}/rank{rank}', 'x', rank) for rank in (0, 2)] == [Path('x/rank0'), Path('x/rank2')]
    train(HostRSS(folder='runs/{run_name}/rank{rank}'))
    assert {path.name for path in Path('runs/test-run/rank0').iterdir()} == {
        *('rank0.0.host_rss.jsonl', 'rank0.0.host_rss.summary.json', 'rank0.manifest.jsonl'),
    }
