"""MemProfiler's readings as growth by function."""

from __future__ import annotations

import gzip
import mmap
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from composer_memprof import MemProfiler, memprofilable
from composer_memprof.analysis.function_growth import FunctionStatsError, read_function_growth
from tests.conftest import child_environment
from tests.support.json_schemas import as_promised
from tests.support.processes import warm_python

MIB = 1 << 20
#: As finetuning-scheduler writes: numbers with a point, names in quotes, an inner mapping.
THEIRS = """\
'0.a ''quoted'' name.0.start':
  rss: 100.0
  allocated_bytes.all.current: 10
'0.a ''quoted'' name.0.end':
  allocated_bytes.all.current: 30
  rss: 90.0
  more:
    rss_like: 7
  text: x
1.forward.1.start: {}
1.forward.1.end:
  rss: 5
1.forward.2.start:
  rss: 5
"""


def inspect(*arguments: object) -> subprocess.CompletedProcess[str]:
    return warm_python.run(
        [sys.executable, '-m', 'composer_memprof.cli', 'inspect', *map(str, arguments)],
        capture_output=True,
        text=True,
        env=child_environment(),
    )


def test_the_function_whose_calls_keep_memory_comes_first() -> None:
    kept = []

    @memprofilable
    def leaks() -> None:
        # Always new memory: malloc may have as much left from what was freed before.
        kept.append(torch.frombuffer(mmap.mmap(-1, 64 * MIB), dtype=torch.float32).fill_(1))

    @memprofilable
    def steady() -> None:
        torch.ones(10)

    with MemProfiler(warmup_iters=0, max_iter=3, save_dir='out').connect(torch.nn.Linear(3, 3)):
        for _ in range(3):
            leaks()
            steady()
    path = Path('out/rank_0_memory_stats.yaml')
    first, second = read_function_growth(path)
    assert (first.function, second.function) == (leaks.__name__, steady.__name__)
    assert [call.iteration for call in first.calls] == [1, 2, 3]
    assert first.rss is not None and 3 * 63 * MIB < first.rss < 4 * 64 * MIB
    assert first.allocated is None, 'not read on a CPU'
    ran = inspect(path)
    assert ran.returncode == 0, ran.stderr
    rows = ran.stdout.splitlines()
    assert rows[0] == 'Growth by function: resident memory'
    assert rows[2].endswith('3 of 3  leaks') and rows[2].lstrip().startswith('+19')
    told = as_promised('inspect', inspect(path, '--json').stdout)['functions'][0]
    assert (told['function'], told['rss'], len(told['calls'])) == ('leaks', first.rss, 3)


@pytest.mark.parametrize('zipped', [False, True])
def test_finetuning_schedulers_file_is_read_and_calls_without_both_ends_are_not(zipped: bool) -> None:
    path = Path('rank_0_memory_stats.yaml.gz' if zipped else 'rank_0_memory_stats.yaml')
    path.write_bytes(gzip.compress(THEIRS.encode()) if zipped else THEIRS.encode())
    first, second = read_function_growth(path)
    assert (first.function, first.rss, first.allocated) == ("a 'quoted' name", -10, 20)
    assert (second.rank, second.function, second.rss, len(second.calls)) == (1, 'forward', None, 1)


@pytest.mark.parametrize(
    ('content', 'words'),
    [
        ('', 'empty'),
        ('a: &a [*a]\n', 'line 1'),
        ('  rss: 5\n', 'line 1'),
        ('0.f.1.begin:\n  rss: 5\n', 'start or end'),
        ('\x1b[2J:\n', '?[2J'),
        ('!!python/object/apply:os.system ["touch pwned"]\n', 'line 1'),
        ('0.f.1.start:\n  rss: ' + '9' * 100_000, 'line 2'),
        ('\x1f\x8bno gzip', 'no readings'),
    ],
)
def test_what_holds_no_readings_is_refused_in_one_line(content: str, words: str) -> None:
    Path('x.yaml').write_bytes(content.encode('latin-1'))
    with pytest.raises(FunctionStatsError) as caught:
        read_function_growth(Path('x.yaml'))
    message = str(caught.value)
    assert words in message and message.isprintable() and 'x.yaml' in message
    assert not Path('pwned').exists()


def test_the_command_refuses_in_one_line() -> None:
    Path('x.yaml').write_text('a: 3\n')
    for path, code in (('x.yaml', 1), ('missing.yaml', 2)):
        ran = inspect(path)
        assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (code, '', 1), ran.stderr
