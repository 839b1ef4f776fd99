"""Changes between two snapshots and between two runs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from composer_memprof.analysis.memory.diff import diff
from composer_memprof.analysis.run import RunResult, list_artifacts, snapshots_by_rank
from composer_memprof.analysis.snapshot.loading import SnapshotError
from composer_memprof.report.text.run_table import next_command, run_table
from tests.conftest import child_environment
from tests.snapshots import FRAME, event, listed, plain, saved, segment

HERE, THERE = [{**FRAME, 'name': 'here'}], [{**FRAME, 'name': 'there'}]
BEFORE = plain(
    event('alloc', 512, 100, HERE, 1), event('alloc', 1024, 50, THERE, 2), phases=[[0, 1, 'forward']], device='cpu'
)
AFTER = plain(
    event('alloc', 512, 300, HERE, 1), event('alloc', 1024, 20, THERE, 2), phases=[[0, 1, 'forward']], device='cpu'
)


def test_what_grew_is_told_by_category_and_place() -> None:
    found = diff(saved(BEFORE, 'a'), saved(AFTER, 'b'))
    (device,) = found.devices
    assert (device.before, device.after, device.reserved_after) == (150, 320, None)
    assert [(change.category, change.bytes) for change in device.categories] == [('activation', 170)]
    assert [(change.frames[0].name, change.bytes) for change in device.places] == [('here', 200), ('there', -30)]


def test_a_snapshot_has_not_grown_over_itself() -> None:
    (device,) = diff(saved(BEFORE, 'a'), Path('a')).devices
    assert {change.bytes for change in [*device.categories, *device.places]} == {0}


def test_devices_that_only_one_has_are_named() -> None:
    content = plain(event('alloc', 1, 10), segments=[segment((5, 70), device=3)])
    found = diff(saved(BEFORE, 'a'), saved(content, 'b'))
    assert [device.device for device in found.devices] == [0]
    assert found.notes == ['Device 3 is only in the second snapshot.']


def test_of_a_run_the_newest_snapshot_of_each_rank_counts() -> None:
    for folder, content in (('run1', BEFORE), ('run2', AFTER)):
        listed(folder, 'rank0.4.pickle', plain(event('alloc', 1, 7)), batch=4)
        listed(folder, 'rank0.10.pickle', content, batch=10)
        listed(folder, 'rank0.20.pickle', None, batch=20, status='removed')
        listed(folder, 'rank0.10.html', None, batch=30, kind='memory_snapshot.page')
    listed('run2', 'rank1.10.pickle', AFTER, rank=1, batch=10)
    found = diff(Path('run1'), Path('run2'))
    assert [(device.rank, device.before, device.after) for device in found.devices] == [(0, 150, 320)]
    assert found.notes == ['Only run2 has rank 1.']
    with_file = diff(saved(BEFORE, 'a'), Path('run2'))
    assert [(device.rank, device.after) for device in with_file.devices] == [(None, 320)]


def test_the_files_of_a_run_are_listed_from_its_folder_or_with_its_subfolders() -> None:
    listed('run', 'rank0.4.pickle', BEFORE, batch=4)
    listed('run', 'rank1.2.pickle', BEFORE, rank=1, batch=2)
    listed('run', 'gone.pickle', None, batch=3, status='removed')
    names = ['rank1.2.pickle', 'rank0.4.pickle']
    folder = Path('run/torch_traces')
    assert list_artifacts([Path('run')]) == []
    for found in (list_artifacts([folder]), list_artifacts([Path('run')], recursive=True)):
        assert [artifact.entry.path for artifact in found] == names
        assert [artifact.checked_path() for artifact in found] == [(folder / name).resolve() for name in names]


@pytest.mark.parametrize('name', ['../secret.pickle', '/etc/passwd', 'link/x.pickle', '', 'x\0y'])
def test_a_name_in_a_manifest_that_leaves_its_folder_is_refused(name: str) -> None:
    saved(AFTER, 'secret.pickle')
    Path('run').mkdir()
    os.symlink(Path.cwd(), 'run/link')
    entry = {'kind': 'memory_snapshot', 'status': 'saved', 'epoch': 0, 'run_name': 'x', 'remote': None, 'bytes': 1}
    line = {**entry, 'path': name, 'sha256': '', 'rank': 0, 'batch': 1}
    Path('run/rank0.manifest.jsonl').write_text(json.dumps(line))
    with pytest.raises(SnapshotError, match='leaves its folder'):
        snapshots_by_rank(Path('run'))


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, '-m', 'composer_memprof.cli', 'diff', *map(str, arguments)],
        capture_output=True,
        text=True,
        env=child_environment(**environment),
    )


def test_diff_prints_for_a_person_and_as_json() -> None:
    paths = saved(BEFORE, 'a'), saved(AFTER, 'b')
    for width in (50, 80):
        run = command(*paths, COLUMNS=str(width))
        assert run.returncode == 0, run.stderr
        for words in ('+170 B', '150 B before', 'activation', 'train.py:7 here', '-30 B'):
            assert words in run.stdout
        assert all(len(line) <= width for line in run.stdout.splitlines())
    (device,) = json.loads(command(*paths, '--json').stdout)['devices']
    assert (device['before'], device['after'], device['places'][0]['frames'][0]['name']) == (150, 320, 'here')
    assert 'no change' in command('a', 'a').stdout


def test_diff_refuses_in_one_line() -> None:
    saved(BEFORE, 'a')
    saved([1], 'bad')
    Path('empty').mkdir()
    for path, code in (('bad', 1), ('empty', 1), ('missing', 2)):
        run = command('a', path)
        assert (run.returncode, run.stdout) == (code, '')
        assert len(run.stderr.splitlines()) == 1, run.stderr


def test_events_that_were_left_out_are_named_with_their_file() -> None:
    found = diff(saved(BEFORE, 'a'), saved(plain(*BEFORE['device_traces'][0], event('new', 0, 1)), 'b'))
    assert found.notes == ["b: Events of an action that is not known here were ignored: 1 of 'new'."]


def inspect(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, '-m', 'composer_memprof.cli', 'inspect', *map(str, arguments)],
        capture_output=True,
        text=True,
        env=child_environment(),
    )


def test_names_in_a_manifest_cannot_control_the_terminal() -> None:
    odd = 'rank0.\x1b[2J\n\r.pickle'
    listed('run', odd, BEFORE)
    ran = inspect('run')
    assert ran.returncode == 0 and '\x1b' not in ran.stdout and '\r' not in ran.stdout
    assert ran.stdout.splitlines()[0].endswith('rank0.?[2J??.pickle')
    listed('run', odd, plain())
    assert '\x1b' not in inspect('run').stdout
    (Path('run/torch_traces') / odd).write_bytes(b'x')
    for refused in (inspect('run'), command('run', 'run'), inspect('missing\x1b[2J')):
        assert refused.returncode in (1, 2) and '\x1b' not in refused.stderr, refused.stderr
    console = Console(record=True, width=120, file=io.StringIO())
    result = RunResult('x\x1b[2J', 1, None, None, list_artifacts([Path('run')], recursive=True))
    console.print(run_table(result))
    assert '\x1b' not in console.export_text(), 'of the table'
    assert '\x1b' not in str(next_command(result.artifacts))
