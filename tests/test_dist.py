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


def test_each_rank_leaves_its_own_files_and_manifest(s3: Any, s3_endpoint: str) -> None:
    composer = Path(sys.executable).parent / 'composer'
    run = subprocess.run(
        [
            *(composer, '-n', '2', '-c', 'composer-memprof', 'train', QUICKSTART, 'max_duration=50ba', *SMALL),
            'callbacks.memprof_host_rss.remote_file_name=s3://runs/{run_name}',
            'callbacks.memprof_torch_profiler.schedule.ranks=[1]',
            'callbacks.memprof_memory_snapshot.filename="{batch}.pickle"',
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env=child_environment(PATH=f'{composer.parent}:/usr/bin:/bin', **s3_environment(s3_endpoint)),
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count('Next, try:') == 1, 'rank 0 alone speaks'
    for rank in (0, 1):
        kinds = {entry.kind for entry in entries(Path('runs/quickstart')) if entry.rank == rank}
        assert {'memory_snapshot', 'host_rss'} <= kinds
        assert ('torch_profiler' in kinds) == (rank == 1), 'its schedule is for rank 1 alone'
        assert s3.exists(f'runs/quickstart/rank{rank}.0.host_rss.jsonl')
    names = {entry.path for entry in entries(Path('runs/quickstart'), 'memory_snapshot')}
    assert len(names) == 2, 'a name without a rank loses nothing'
