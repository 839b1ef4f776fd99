"""macOS and Windows, as far as Linux can show: the package with what those systems do not have hidden from it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import child_environment, entries
from tests.support.processes import warm_python
from tests.support.processes.python_code import PACKAGE_ANEW

pytestmark = pytest.mark.slow

_JOB = f"""{PACKAGE_ANEW}
from tests.support.processes.other_platform import pretend
pretend(sys.argv[1])
import composer_memprof
from composer_memprof.cli import app
from tests.conftest import train
from typer.testing import CliRunner

ALONE = ['Memray', 'TorchProfiler', 'VizTracer']
TOGETHER = ['HostRSS', 'StepTimes', 'MemorySnapshot', 'SavedTensorsHook', 'FSDPMemTracker', 'MemProfiler', 'Flops']
for names in (TOGETHER, *([name] for name in ALONE)):
    callbacks = [getattr(composer_memprof, name)(schedule={{'skip': '2ba', 'active': '1ba'}}, folder='run') for name in names]
    train(*callbacks, batches=6)
reading = [['ls', 'run'], ['ls', 'run', '--json'], ['report', 'run'], ['report', 'run', '--json'], ['inspect', 'run']]
for words in [*reading, ['callbacks'], ['guide'], ['push', 'run'], ['watch', 'run', '--every', '0.5']]:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (words, done.output, done.exception)
for words in (['simulate', '--', 'python', 'x.py'], ['plan', 'x.yaml']):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1 and 'on Linux x86-64 only' in done.output, (words, done.output, done.exception)
"""


@pytest.mark.parametrize('platform', ['darwin', 'win32'])
def test_callbacks_and_reading_commands_need_nothing_that_only_linux_has(platform: str) -> None:
    done = warm_python.run(
        [sys.executable, '-c', _JOB, platform], env=child_environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert 'is disabled' not in done.stderr and 'Error' not in done.stderr.replace('DeviceProperties', ''), done.stderr
    saved = {entry.kind for entry in entries(Path('run')) if entry.status == 'saved'}
    kinds = 'host_rss step_times memory_snapshot saved_tensors_hook fsdp_mem_tracker mem_profiler flops memray'
    assert saved >= {*kinds.split(), 'torch_profiler', 'viztracer', 'memory_snapshot.page'}
    assert {entry.status for entry in entries(Path('run'))} <= {'saved', 'removed'}
