"""Two ranks over gloo, started as a user starts them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import child_environment, entries, s3_environment
from tests.test_cli import QUICKSTART, SMALL

pytestmark = pytest.mark.dist


def two_ranks(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    composer = Path(sys.executable).parent / 'composer'
    return subprocess.run(
        [str(composer), '-n', '2', *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=child_environment(PATH=f'{composer.parent}:/usr/bin:/bin', **environment),
    )


def test_each_rank_leaves_its_own_files_and_manifest(s3: Any, s3_endpoint: str) -> None:
    run = two_ranks(
        *('-c', 'composer-memprof', 'train', str(QUICKSTART), 'max_duration=50ba', *SMALL),
        'callbacks.memprof_host_rss.remote_file_name=s3://runs/{run_name}',
        **s3_environment(s3_endpoint),
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count('Next, try:') == 1, 'rank 0 alone speaks'
    for rank in (0, 1):
        kinds = {entry.kind for entry in entries(Path('runs/quickstart')) if entry.rank == rank}
        assert {'memory_snapshot', 'torch_profiler', 'host_rss'} <= kinds
        assert s3.exists(f'runs/quickstart/rank{rank}.0.host_rss.jsonl')


def test_a_schedule_of_one_rank_leaves_the_other_alone() -> None:
    run = two_ranks(
        *('-c', 'composer-memprof', 'train', str(QUICKSTART), 'max_duration=46ba', *SMALL),
        'callbacks.memprof_torch_profiler.schedule.ranks=[1]',
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert {entry.rank for entry in entries(Path('runs/quickstart'), 'torch_profiler')} == {1}


def test_names_without_a_rank_lose_nothing() -> None:
    run = two_ranks(
        *('-c', 'composer-memprof', 'train', str(QUICKSTART), 'max_duration=46ba', *SMALL),
        'callbacks.memprof_torch_profiler.filename="{batch}.pt.trace.json"',
    )
    assert run.returncode == 0, run.stdout + run.stderr
    names = {entry.path for entry in entries(Path('runs/quickstart'), 'torch_profiler')}
    assert names == {'44.pt.trace.json.gz', '44.2.pt.trace.json.gz'}
