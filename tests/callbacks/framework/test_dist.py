"""Two ranks over gloo, started as a user starts them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from composer_memprof.examples.byte_gpt import ByteGPT
from tests.commands.test_cli import QUICKSTART, SMALL
from tests.conftest import child_environment, entries, s3_environment
from tests.support.processes import warm_python
from tests.support.processes.forked_python import LAUNCHER
from tests.support.processes.ranks import python_on_ranks

pytestmark = [pytest.mark.dist, pytest.mark.slow]


def launched(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """What Composer's launcher starts with the arguments, forked from it."""
    scripts = Path(sys.executable).parent
    return warm_python.run(
        [*(sys.executable, '-c', LAUNCHER, 'composer.cli', '-n', '2'), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=child_environment(PATH=f'{scripts}:/usr/bin:/bin', **environment),
    )


def test_each_rank_leaves_its_own_files_and_manifest(s3: Any, s3_endpoint: str) -> None:
    run = launched(
        *('-c', 'composer-memprof', 'train', QUICKSTART, 'max_duration=50ba', *SMALL),
        'callbacks.memprof_host_rss.remote_file_name=s3://runs/{run_name}',
        'callbacks.memprof_torch_profiler.schedule.ranks=[1]',
        'callbacks.memprof_memory_snapshot.filename="{batch}.pickle"',
        **s3_environment(s3_endpoint),
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


def test_the_sharded_gpt_leaves_both_ranks_tables_with_exact_optimizer_state() -> None:
    config = str(QUICKSTART.parent / 'fsdp2.yaml')
    python_on_ranks('-m', 'composer_memprof.cli', 'train', config, 'progress_bar=false', folder=Path.cwd())
    folder = Path('runs/fsdp2')
    for rank in (0, 1):
        (table,) = folder.glob(f'fsdp_mem_rank_{rank}_train_*.log')
        assert 'OptState' in table.read_text()
        sizes = json.loads(table.with_suffix('.json').read_text())['phases']['backward']['cpu']
        counters = 4 * len(list(ByteGPT().parameters()))
        assert sizes['OptState'] == 2 * sizes['ShardedParam'] + counters
        assert sizes['Activation'] > 10 * sizes['ShardedParam'], 'not under OptState'
        assert {'fsdp_mem_tracker', 'saved_tensors_hook'} <= {
            entry.kind for entry in entries(folder) if entry.rank == rank
        }


_ONE_RANK_DIES = """
import os
from composer.core import Callback
from composer.utils import dist
from torch.utils.data import DataLoader
from composer_memprof import HostRSS, MemorySnapshot, TorchProfiler
from tests.conftest import Noise, make_trainer

class Dies(Callback):
    def batch_end(self, state, logger):
        if state.timestamp.batch == 8 and dist.get_global_rank() == 1:
            os._exit(3)

if __name__ == '__main__':
    dist.initialize_dist('cpu')
    noise = Noise(20 * 2 * 8)
    make_trainer(
        MemorySnapshot(schedule={'active': '2ba'}),
        HostRSS(),
        TorchProfiler(schedule={'skip': '3ba', 'active': '50ba'}, with_stack=True),
        Dies(),
        train_dataloader=DataLoader(noise, batch_size=8, sampler=dist.get_sampler(noise)),
    ).fit()
"""


def test_when_a_rank_dies_the_other_saves_everything_and_ends_by_itself() -> None:
    Path('job.py').write_text(_ONE_RANK_DIES)
    run = launched('job.py')
    assert 'Rank 1 crashed with exit code 3' in run.stderr
    assert 'SIGKILL' not in run.stderr, 'the launcher did not have to kill it'
    saved = {entry.kind for entry in entries(Path('test-run')) if entry.rank == 0 and entry.status == 'saved'}
    assert {'memory_snapshot', 'memory_snapshot.page', 'host_rss', 'torch_profiler'} <= saved
