"""Changes between two snapshots and between two runs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from composer_memprof.analysis.memory.findings.diff import diff
from composer_memprof.analysis.memory.findings.same_places import same_files
from composer_memprof.analysis.run import RunResult, list_artifacts, snapshots_by_rank
from composer_memprof.analysis.run_report.report import report_on_paths
from composer_memprof.analysis.snapshot.loading import SnapshotError
from composer_memprof.report.text.terminal.run_table import next_command, run_table
from tests.conftest import child_environment
from tests.support.processes import warm_python
from tests.support.recordings.snapshots import FRAME, event, freed, listed, plain, saved, segment

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


# -- the same place in two recordings -------------------------------------------------------------------------------


def line(number: int, name: str = 'step', file: str = '/home/me/app/train.py') -> dict[str, Any]:
    return {'filename': file, 'line': number, 'name': name}


def held(*blocks: tuple[list[dict[str, Any]], int], **ours: Any) -> dict[str, Any]:
    """Blocks of some stacks and sizes, none of them freed."""
    return plain(*(event('alloc', 512 * number, size, frames) for number, (frames, size) in enumerate(blocks)), **ours)


def changes(before: Any, after: Any) -> dict[tuple[str, int], tuple[int, int]]:
    """Bytes before and after by function and line of the innermost frame."""
    (device,) = diff(saved(before, 'a'), saved(after, 'b')).devices
    return {(place.frames[0].name, place.frames[0].line): (place.before, place.after) for place in device.places}


def test_lines_that_moved_are_the_same_place() -> None:
    before = held(([line(10), line(50, 'main')], 100), ([line(20, 'other')], 70))
    after = held(([line(13), line(53, 'main')], 130), ([line(23, 'other')], 70))
    assert changes(before, after) == {('step', 13): (100, 130), ('other', 23): (70, 70)}


def test_a_checkout_elsewhere_is_the_same_code() -> None:
    here = '/home/me/app/train.py', '/home/me/app/model/block.py', '/usr/lib/python3.11/site-packages/pkg/block.py'
    there = '/ci/7/build/train.py', '/ci/7/build/model/block.py', '/venv/lib/python3.12/site-packages/pkg/block.py'
    one, other = (
        held(
            *(
                ([line(number, file=file), line(99, 'main', files[0])], 10 * number)
                for number, file in enumerate(files, 1)
            )
        )
        for files in (here, there)
    )
    found = changes(one, other)
    assert found == {('step', 1): (10, 10), ('step', 2): (20, 20), ('main', 99): (30, 30)}, 'the last one in a package'


def test_places_of_one_function_are_matched_in_the_order_of_their_lines() -> None:
    before = held(([line(10)], 100), ([line(20)], 200))
    after = held(([line(30)], 201), ([line(20)], 100))  # 20 was 10
    assert changes(before, after) == {('step', 20): (100, 100), ('step', 30): (200, 201)}
    more = held(([line(10)], 100), ([line(15)], 50), ([line(21)], 200))
    assert changes(before, more) == {('step', 10): (100, 100), ('step', 15): (0, 50), ('step', 21): (200, 200)}
    assert changes(more, before) == {('step', 10): (100, 100), ('step', 15): (50, 0), ('step', 20): (200, 200)}


def test_another_function_or_caller_is_another_place() -> None:
    before = held(([line(10), line(50, 'main')], 100))
    assert changes(before, held(([line(10, 'renamed'), line(50, 'main')], 100))) == {
        ('step', 10): (100, 0),
        ('renamed', 10): (0, 100),
    }
    assert list(changes(before, held(([line(10), line(50, 'evaluate')], 100))).values()) == [(0, 100)]


def test_files_are_the_same_by_the_longest_end_of_their_paths() -> None:
    assert same_files(['/a/x/m.py', '/a/y/m.py'], ['/b/y/m.py', '/b/x/m.py']) == {
        '/a/x/m.py': '/b/x/m.py',
        '/a/y/m.py': '/b/y/m.py',
    }
    assert same_files(['/a/one/__init__.py'], ['/a/two/__init__.py']) == {}, 'its name alone says nothing'
    assert same_files(['m.py'], ['/b/m.py']) == {'m.py': '/b/m.py'}


def test_many_files_and_lines_take_little_time() -> None:
    names = [f'/{side}/' * 50 + 'm.py' for side in range(20_000)]
    assert len(same_files(names, [f'/x{name}' for name in names])) == 20_000
    before, after = (held(*(([line(number)], number + 1) for number in range(count))) for count in (2_000, 2_500))
    assert sum(after for _, after in changes(before, after).values()) == sum(range(2_501))


# -- categories, devices, nothing -----------------------------------------------------------------------------------


def test_a_category_is_compared_at_its_own_maximum_too() -> None:
    def run(early: int) -> dict[str, Any]:
        """The temporary of the first batch is gone at the peak."""
        return plain(
            event('alloc', 512, early, HERE, 1),
            *freed(512, early, HERE, 2),
            event('alloc', 1024, 1000, THERE, 11),
            phases=[[0, 1, 'optimizer'], [10, 2, 'dataloader']],
            device='cpu',
        )

    (device,) = diff(saved(run(100), 'a'), saved(run(900), 'b')).devices
    assert [(each.category, each.bytes, each.most) for each in device.categories] == [
        ('temporary', 0, 800),
        ('input', 0, 0),
    ]
    shown = command('a', 'b').stdout
    assert 'no change     0 B    0 B      +800 B  temporary' in shown, shown
    assert 'By place' not in shown


def on_device(number: int, size: int, **ours: Any) -> dict[str, Any]:
    content = plain(**ours) if ours else plain()
    return content | {'device_traces': [[]] * number + [[event('alloc', 512, size)]]}


def test_of_different_ranks_each_ones_own_device_is_compared() -> None:
    other = on_device(3, 150, rank=3)
    other['device_traces'][0] = [event('alloc', 512, 7)]  # of a process that used the first device for a moment
    found = diff(saved(on_device(0, 100, rank=0), 'a'), saved(other, 'b'))
    assert [(each.device, each.device_after, each.before, each.after) for each in found.devices] == [(0, 3, 100, 150)]
    assert found.notes == ['Device 0 is only in the second snapshot.']
    assert 'compared with device 3' in command('a', 'b').stdout


def test_a_rank_that_runs_on_another_device_later_is_compared() -> None:
    for folder, number, size in (('run1', 0, 100), ('run2', 2, 130)):
        listed(folder, 'rank1.4.pickle', on_device(number, size, rank=1), rank=1)
    found = diff(Path('run1'), Path('run2'))
    assert [(each.rank, each.device, each.device_after, each.after) for each in found.devices] == [(1, 0, 2, 130)]
    assert found.notes == []


def test_a_file_is_compared_with_its_rank_of_a_run() -> None:
    for rank in (0, 1, 2):
        listed('run', f'rank{rank}.4.pickle', held(([line(1)], 100 + rank), rank=rank), rank=rank)
    for rank, after in ((2, 102), (7, 100)):
        (device,) = diff(saved(held(([line(1)], 5), rank=rank), 'a'), Path('run')).devices
        assert (device.before, device.after) == (5, after)


def test_an_empty_comparison_is_said_in_a_sentence() -> None:
    saved(plain(), 'a')
    assert command('a', 'a').stdout == 'Nothing could be compared: no allocation was recorded in either.\n'
    for rank in (0, 1):
        listed('one', f'rank{rank}.4.pickle', BEFORE, rank=rank)
        listed('other', f'rank{rank}.4.pickle', BEFORE, rank=rank + 4)
    shown = ' '.join(command('one', 'other').stdout.split())
    assert shown == (
        'Nothing could be compared: one has a snapshot of rank 0, 1, other of rank 4, 5. Name two snapshots to compare '
        'these.'
    )
    saved(BEFORE, 'b')
    assert 'Every category and every place in the code holds as much as before.' in command('b', 'b').stdout


# -- the command ----------------------------------------------------------------------------------------------------


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return warm_python.run(
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
    return warm_python.run(
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


def test_the_page_of_a_diff_has_both_and_two_files_of_one_rank_are_compared() -> None:
    for name, size in (('a.pickle', 1 << 20), ('b.pickle', 3 << 20)):
        saved(plain(event('alloc', 512, size, time=1), device='cuda', phases=[[0, 1, 'forward']]), name)
    done = command('a.pickle', 'b.pickle', '--html', 'pages/x.html')
    assert done.returncode == 0 and done.stdout.endswith('\nopen in a browser: pages/x.html\n'), done.stderr
    page = Path('pages/x.html').read_text()
    assert 'Against a.pickle: its peak of allocated memory is 3.0 MiB, 3.0 times 1.0 MiB.' in page
    assert 'id="both-memory-snapshot"' in page and 'id="over-time-before"' in page
    refused = command('a.pickle', 'b.pickle', '--html', 'x.txt')
    assert (refused.returncode, refused.stderr) == (2, "composer-memprof: --html='x.txt' must end with .html\n")
    report = report_on_paths([(Path('a.pickle'), 'a.pickle'), (Path('b.pickle'), 'b.pickle')])
    assert report.comparison is not None and report.comparison.before == 'a.pickle'
    Path('rank0.pickle').write_bytes(Path('a.pickle').read_bytes())
    Path('rank1.pickle').write_bytes(Path('b.pickle').read_bytes())
    ranks = report_on_paths([(Path('rank0.pickle'), 'rank0.pickle'), (Path('rank1.pickle'), 'rank1.pickle')])
    assert ranks.comparison is None and len(ranks.ranks) == 2
