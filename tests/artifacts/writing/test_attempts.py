"""Attempts: which processes recorded a run, how each ended, and what the next one makes of what a killed one left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from composer.core import Callback, State
from composer.loggers import Logger

from composer_memprof import HostRSS, StepTimes
from composer_memprof.analysis.run_report.attempts import run_attempts
from composer_memprof.analysis.run_report.files import find_files
from composer_memprof.analysis.run_report.report import report_on_run
from composer_memprof.artifacts.reading.attempts import Attempt, now, own_attempt, read_attempts
from composer_memprof.artifacts.reading.manifest import Manifest, read_manifest
from composer_memprof.artifacts.reading.running import goes_on, is_written
from composer_memprof.messages import MemprofWarning
from composer_memprof.report.text.sentences.run_failures import attempt_lines
from composer_memprof.report.text.sentences.run_verdict import verdict
from tests.conftest import child_environment, entries, make_trainer, train
from tests.support.processes import warm_python
from tests.support.stores import FOLDER, entry

_RUN = """
import os, sys, time
from composer.core import Callback
from composer_memprof import HostRSS, StepTimes
from tests.conftest import make_trainer

class Happens(Callback):
    def batch_end(self, state, logger):
        if state.timestamp.batch == 4:
            {happens}

make_trainer(HostRSS(), StepTimes(), Happens(), batches=8).fit()
"""
MANIFEST = Path('test-run/memprof/rank0.manifest.jsonl')


def start(happens: str) -> subprocess.Popen[str]:
    Path('job.py').write_text(_RUN.format(happens=happens))
    return warm_python.Popen(
        [sys.executable, 'job.py'], env=child_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(happens: str) -> subprocess.CompletedProcess[str]:
    job = start(happens)
    _, errors = job.communicate(timeout=60)
    return subprocess.CompletedProcess([], job.returncode, '', errors)


def said() -> list[str]:
    return [sentence.text for sentence in verdict(report_on_run(find_files([Path('test-run')])))]


def test_a_run_that_was_killed_twice_and_then_finished_says_so() -> None:
    for _ in range(2):
        assert run('os.kill(os.getpid(), 9)').returncode == -signal.SIGKILL
    assert said()[0].startswith('Rank 0 was killed, or ended with os._exit: process ')
    train(HostRSS(), StepTimes(), batches=8)
    assert [attempt.end for attempt in read_attempts(MANIFEST)] == ['killed', 'killed', 'finished']
    listed = entries(Path('test-run'))
    assert {each.status for each in listed if not each.kind.endswith('.unfinished')} == {'saved'}
    assert all((MANIFEST.parent / each.path).stat().st_size == each.bytes for each in listed)
    assert not goes_on(Path('test-run')), 'a moment after its end'
    assert 'This is attempt 3. Attempt 1 was killed. Attempt 2 was killed.' in said()
    lines = attempt_lines(run_attempts([Path('test-run')]))
    assert [line.rpartition(', ')[2] for line in lines] == ['was killed', 'was killed', 'finished']


@pytest.mark.parametrize(
    ('happens', 'end', 'error', 'line'),
    [
        ("raise ValueError('bad batch')", 'failed', 'ValueError: bad batch', 'job.py:10 in batch_end'),
        ('import torch; torch.ones(2) @ torch.ones(3)', 'failed', 'RuntimeError: ', 'job.py:10 in batch_end'),
        ('os.kill(os.getpid(), 15)', 'stopped', 'SIGTERM', 'job.py:10 in batch_end'),
        ('os.kill(os.getpid(), 2)', 'stopped', 'SIGINT', 'job.py:10 in batch_end'),
        ('sys.exit(3)', 'stopped', 'SystemExit: 3', 'job.py:10 in batch_end'),
    ],
)
def test_what_ended_fit_is_listed(happens: str, end: str, error: str, line: str) -> None:
    assert run(happens).returncode != 0
    (attempt,) = read_attempts(MANIFEST)
    assert (attempt.end, attempt.line, attempt.batch) == (end, line, 4)
    assert attempt.error is not None and attempt.error.startswith(error)
    assert attempt.began < (attempt.failed or '') <= (attempt.ended or '')
    verb = 'failed' if end == 'failed' else 'was stopped'
    assert said()[0].startswith(f'Rank 0 {verb} in batch 4: {error}')


def test_an_error_that_was_caught_is_listed_at_once_and_the_attempt_may_end_well() -> None:
    class FailsOnce(Callback):
        failed = False

        def batch_start(self, state: State, logger: Logger) -> None:
            if not self.failed:
                self.failed = True
                raise ValueError('once')

    trainer = make_trainer(HostRSS(), FailsOnce(), batches=8)
    with pytest.raises(ValueError, match='once'):
        trainer.fit()
    (attempt,) = read_attempts(MANIFEST)
    assert (attempt.end, attempt.error, attempt.batch) == (None, 'ValueError: once', 0)
    trainer.fit()
    trainer.close()
    assert 'fit' not in vars(trainer), 'nothing stays behind'
    assert [attempt.end for attempt in read_attempts(MANIFEST)] == ['finished']


def test_a_second_live_run_of_the_name_is_warned_of_and_kept_apart() -> None:
    first = start("print('ready', flush=True); time.sleep(30)")
    assert first.stdout is not None
    assert first.stdout.readline() == 'ready\n'
    before = MANIFEST.read_text()
    with pytest.warns(MemprofWarning, match=r"another process is writing the run 'test-run'.* named 'test-run\.2'"):
        train(HostRSS(), StepTimes(folder='fixed'), batches=8)
    assert MANIFEST.read_text() == before
    assert {each.run_name for each in entries(Path('test-run.2'))} == {'test-run.2'}
    assert len(entries(Path('fixed.2'))) == 2
    first.kill()
    first.communicate(timeout=30)
    train(HostRSS(), batches=8)
    assert [attempt.end for attempt in read_attempts(MANIFEST)] == ['killed', 'finished']


def dead(**facts: Any) -> Attempt:
    return replace(own_attempt(0), id='dead', process=2**22 - 1, **facts)


def listed(*attempts: Attempt, folder: Path = FOLDER) -> Path:
    manifest = Manifest.acquire(folder, attempts[0].rank)
    manifest._attempt = None
    for attempt in attempts:
        manifest.append_attempt(attempt)
    manifest.release()
    return manifest.path


def test_a_child_that_writes_a_dead_runs_last_files_is_no_live_run() -> None:
    path = listed(dead())
    code = f'import fcntl; file = open({str(path)!r}, "a"); fcntl.flock(file, fcntl.LOCK_SH); print(1, flush=True); input()'
    child = subprocess.Popen([sys.executable, '-c', code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == '1\n'
    try:
        assert is_written(path) is False
        listed(dead(host='another'))
        assert is_written(path) is True, 'who has it there cannot be seen'
    finally:
        child.communicate('\n', timeout=20)
    assert is_written(path) is False


def test_lines_of_attempts_are_not_trusted_and_harm_no_older_reader() -> None:
    path = listed(dead())
    sound = json.loads(path.read_text())
    assert sound.keys() == {**entry('a', 'removed').as_dict(), 'attempt': {}}.keys()
    for forged in (
        {'process': '1'},
        {'began': 'yesterday'},
        {'end': 'won'},
        {'end': ['killed']},
        {'rank': -1},
        {'host': 'x' * 9000},
        {'id': None},
    ):
        with open(path, 'a') as file:
            file.write(json.dumps({**sound, 'attempt': {**sound['attempt'], 'id': 'forged', **forged}}) + '\n')
    assert [attempt.id for attempt in read_attempts(path)] == ['dead']
    assert read_manifest(path) == []


def of_four_ranks(*ends: tuple[str, str, int]) -> list[str]:
    """The verdict on ranks that ended so: how, by which error, and in which second."""
    for rank, (end, error, second) in enumerate(ends):
        failed = f'2026-11-23T10:00:{second:02}.000+00:00'
        facts: dict[str, Any] = {'error': error, 'failed': failed, 'batch': 7, 'line': 'train.py:8 in forward'}
        began = '2026-11-23T09:59:00.000+00:00'
        listed(dead(rank=rank, began=began, end=end, ended=now(), **(facts if error else {})))
        with open(FOLDER / f'rank{rank}.manifest.jsonl', 'a') as manifest:
            manifest.write(json.dumps(replace(entry(f'{rank}.json', 'saved'), rank=rank).as_dict()) + '\n')
    return [sentence.text for sentence in verdict(report_on_run(find_files([FOLDER])))]


GLOO = 'RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:9201'
NCCL = 'DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error'


@pytest.mark.parametrize(
    'lost', [GLOO, NCCL, 'SystemExit: 143', 'SIGTERM', 'torch.distributed.DistStoreError: timed out']
)
def test_the_rank_that_failed_by_itself_comes_first(lost: str) -> None:
    stopped = ('stopped' if lost.startswith('S') else 'failed', lost, 3)
    verdict = of_four_ranks(stopped, stopped, ('failed', 'ValueError: bad batch', 9), stopped)
    assert verdict[0] == (
        'Rank 2 failed in batch 7: ValueError: bad batch (train.py:8 in forward). Ranks 0, 1, 3 were stopped by that.'
    )


def test_of_ranks_that_failed_by_themselves_the_earliest_comes_first() -> None:
    late, early = ('failed', 'KeyError: late', 5), ('failed', 'ValueError: early', 4)
    assert of_four_ranks(late, late, early, late)[0].startswith('Rank 2 failed in batch 7: ValueError: early')


def test_a_rank_that_was_killed_comes_before_those_that_lost_the_connection_to_it() -> None:
    lost = ('failed', GLOO, 3)
    verdict = of_four_ranks(lost, lost, ('killed', '', 0), ('stopped', 'SIGTERM', 4))
    assert verdict[0].startswith(f'Rank 2 was killed, or ended with os._exit: process {2**22 - 1} on ')
    assert verdict[0].endswith(f'Ranks 0, 1 then lost the connection: {GLOO}. Rank 3 was stopped by that.')


def test_a_rank_that_never_came_is_named_with_the_line_where_it_was() -> None:
    waited = ('failed', 'RuntimeError: [gloo/unbound_buffer.cc:81] Timed out waiting 8000ms for recv operation', 3)
    verdict = of_four_ranks(waited, waited, ('stopped', 'SIGTERM', 9), waited)
    assert verdict[0].startswith(
        'Rank 2 did not come to what ranks 0, 1, 3 waited for: it was still in batch 7, at train.py:8 in forward.'
    )
