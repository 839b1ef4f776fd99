"""Runs in a store: fetched into a temporary folder without trust in its names, inspected and compared as on a disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from composer_memprof import MemorySnapshot
from composer_memprof.analysis.run import snapshot_to_show, snapshots_by_rank
from composer_memprof.analysis.stored_runs import local_run
from composer_memprof.artifacts.reading.fetching import FetchError, local_copy
from tests.conftest import child_environment, train
from tests.support.processes import warm_python
from tests.support.recordings.snapshots import event, listed, plain, saved

SMALL = plain(event('alloc', 512, 100), phases=[[0, 1, 'forward']], device='cpu')
LARGE = plain(event('alloc', 512, 300), phases=[[0, 1, 'forward']], device='cpu')


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """An empty store in this process, and temporary folders that the test can look at."""
    (tmp_path / 'tmp').mkdir()
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'tmp'))
    filesystem = fsspec.filesystem('memory')
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()
    assert list((tmp_path / 'tmp').iterdir()) == [], 'temporary folders are removed'


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob('*') if path.is_file())


def test_the_wanted_files_of_a_folder_are_fetched(memory: Any) -> None:
    memory.pipe({'/run/a/x.json': b'{}', '/run/a/x.html': b'page', '/run/y.json': b'[]', '/run2/z.json': b''})
    with local_copy('memory://run', wanted=lambda name: name.endswith('.json')) as folder:
        assert names_in(folder) == ['a/x.json', 'y.json']
        assert (folder / 'a/x.json').read_bytes() == b'{}'
    with local_copy('memory://run/') as folder:
        assert len(names_in(folder)) == 3
    with local_copy('memory://run/y.json', wanted=lambda name: False) as file:
        assert (file.name, file.read_bytes()) == ('y.json', b'[]')


@pytest.mark.parametrize('name', ['../../secret', '/../../../../secret', '..', 'x/../../y'])
def test_a_name_in_a_store_that_leaves_the_folder_is_refused(memory: Any, name: str) -> None:
    memory.pipe('/run/good', b'x')
    memory.store[f'/run/{name}'] = memory.store['/run/good']
    with pytest.raises(FetchError, match='leaves its folder'), local_copy('memory://run'):
        pass
    assert not Path('secret').exists()


def test_an_address_that_cannot_be_read_is_one_line(memory: Any) -> None:
    memory.pipe('/run/a', b'')
    memory.store['/run/a/b'] = memory.store['/run/a']  # a file and a folder of one name
    for uri, words in (
        ('memory://nothing', 'there is nothing at memory://nothing'),
        ('nowhere://x', 'nowhere:// is unknown'),
        ('memory://run', 'memory://run cannot be read'),
        ('s3://key:secret@bucket/x', 'without credentials'),
        ('memory://x::file://y', 'one store'),
    ):
        with pytest.raises(FetchError) as caught, local_copy(uri):
            pass
        assert words in str(caught.value) and len(str(caught.value).splitlines()) == 1
        assert 'secret' not in str(caught.value)


def test_of_a_run_the_manifests_and_the_chosen_snapshots_are_fetched(memory: Any) -> None:
    for rank, batch in ((0, 4), (0, 8), (1, 8)):
        listed('run', f'rank{rank}.{batch}.pickle', SMALL, rank=rank, batch=batch)
    memory.put('run', '/stored', recursive=True)
    fetched: list[str] = []
    get = memory.get
    memory.get = lambda remote, local: (fetched.extend(Path(each).name for each in remote), get(remote, local))
    try:
        with local_run('memory://stored', lambda folder: [snapshot_to_show(folder).path]) as run:
            chosen = snapshot_to_show(run.path)
            assert run.named(str(chosen.path)) == 'memory://stored/torch_traces/rank0.8.pickle'
    finally:
        del memory.get
    assert fetched == ['rank0.manifest.jsonl', 'rank1.manifest.jsonl', 'rank0.8.pickle']


# -- snapshots that no manifest lists -------------------------------------------------------------------------------


def test_a_folder_of_snapshots_without_a_manifest_is_read_by_their_names() -> None:
    Path('bare/deep').mkdir(parents=True)
    for name in ('rank0.9.pickle', 'rank0.10.pickle', 'rank3_oom.pickle', 'rank3.12.pickle.gz', 'deep/rank12.1.pkl'):
        saved(SMALL, f'bare/{name}')
    Path('bare/rank9.1.json').write_text('{}')
    found = {rank: path.name for rank, path in snapshots_by_rank(Path('bare')).items()}
    assert found == {0: 'rank0.10.pickle', 3: 'rank3_oom.pickle', 12: 'rank12.1.pkl'}
    chosen = snapshot_to_show(Path('bare'))
    assert (chosen.rank, chosen.failure, chosen.entry) == (3, 'ran out of memory', None)


def test_without_ranks_in_their_names_the_newest_is_that_of_rank_0() -> None:
    for number, name in enumerate(('b.pickle', 'a.pickle')):
        os.utime(saved(SMALL, name), (1000 * number, 1000 * number))
    assert {rank: path.name for rank, path in snapshots_by_rank(Path()).items()} == {0: 'a.pickle'}


# -- the commands ---------------------------------------------------------------------------------------------------


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return warm_python.run(
        [sys.executable, '-m', 'composer_memprof.cli', *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env=child_environment(COLUMNS='80'),
    )


@pytest.mark.slow
def test_inspect_and_diff_read_s3_as_a_folder(s3: Any) -> None:
    for folder, content in (('before', SMALL), ('after', LARGE)):
        for rank in (0, 1):
            listed(folder, f'rank{rank}.4.pickle', content, rank=rank, batch=4)
        s3.put(folder, f'runs/{folder}', recursive=True)
    there, here = (
        command('inspect', 's3://runs/after', '--rank', 1, '--html', 'x.html'),
        command('inspect', 'after', '--rank', 1),
    )
    first, *rest = there.stdout.splitlines()
    assert first == 's3://runs/after/torch_traces/rank1.4.pickle', there.stderr
    assert rest[:-2] == here.stdout.splitlines()[1:] and Path('x.html').exists()
    file = command('inspect', 's3://runs/after/torch_traces/rank1.4.pickle', '--json')
    told = json.loads(file.stdout)
    assert (told['devices'][0]['peak']['bytes'], told['file']['path'].partition('://')[0]) == (300, 's3')
    compared = json.loads(command('diff', 'before', 's3://runs/after', '--json').stdout)
    sizes = [(each['rank'], each['before'], each['after']) for each in compared['devices']]
    assert sizes == [(0, 100, 300), (1, 100, 300)]
    assert compared['after'][0] == 's3://runs/after/torch_traces/rank0.4.pickle'
    for arguments, words in (
        (('inspect', 's3://runs/nothing'), 'there is nothing at s3://runs/nothing'),
        (('inspect', 's3://runs/after', '--rank', 7), 'rank 7 has no memory snapshot in s3://runs/after'),
        (('diff', 's3://no-such-bucket/x', 'after'), 's3://no-such-bucket/x'),
    ):
        refused = command(*arguments)
        assert refused.returncode in (1, 2) and words in refused.stderr, refused.stderr
        assert len(refused.stderr.splitlines()) == 1, refused.stderr


@pytest.mark.slow
def test_what_a_callback_uploaded_is_inspected_without_a_manifest(s3: Any) -> None:
    train(MemorySnapshot(schedule={'skip': '1ba', 'active': '1ba'}, remote_file_name='s3://runs/{run_name}/memory'))
    s3.pipe('runs/test-run/memory/rank0.1.bad.pickle', b'x')  # older
    shown = command('inspect', 's3://runs/test-run/memory')
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith('s3://runs/test-run/memory/rank0.2.memory_snapshot.pickle\nPeak of device 0')
    bad = command('inspect', 's3://runs/test-run/memory/rank0.1.bad.pickle')
    assert bad.stderr.startswith('composer-memprof: s3://runs/test-run/memory/rank0.1.bad.pickle is not a memory'), bad
