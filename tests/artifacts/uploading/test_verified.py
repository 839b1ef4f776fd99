"""Before a file is removed here, its store is asked for it. So does ``push --verify``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from typer.testing import CliRunner

from composer_memprof import HostRSS
from composer_memprof.artifacts.uploading import sent
from composer_memprof.artifacts.uploading.destinations import FsspecDestination
from composer_memprof.artifacts.uploading.sent import Comparison
from composer_memprof.cli import app
from composer_memprof.messages import MemprofWarning
from tests.conftest import entries, train, wait_for
from tests.support.sink import start_sink
from tests.support.stores import FOLDER, MemoryDestination, make_store, stamp, statuses, text


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A store that accepts all and keeps nothing."""
    process, address = start_sink()
    for name, value in {'ENDPOINT_URL': address, 'ACCESS_KEY_ID': 'a', 'SECRET_ACCESS_KEY': 'b'}.items():
        monkeypatch.setenv(f'AWS_{name}', value)
    yield
    process.kill()
    process.wait()


def test_a_store_that_keeps_nothing_costs_no_file(sink: None) -> None:
    with pytest.warns(MemprofWarning, match='was uploaded to .*, but the store does not have it. The file is kept'):
        train(HostRSS(remote_file_name='s3://runs/x', num_artifacts_to_keep=0))
    listed = entries(Path('test-run'), 'host_rss')
    assert {entry.status for entry in listed} == {'failed'}
    assert all(list(Path('test-run').rglob(entry.path)) for entry in listed)


@pytest.mark.parametrize('content', [b'', b'jello'])
def test_an_object_that_is_another_is_sent_again_under_a_free_name(content: bytes, s3: Any) -> None:
    store = make_store(FsspecDestination(), 's3://runs/{batch}', keep=1)
    store.save([text()], stamp(1))
    wait_for(lambda: statuses(FOLDER)['uploaded'] == 1, 20)
    s3.pipe_file('runs/1.txt', content)
    with pytest.warns(
        MemprofWarning, match=r'1.txt was uploaded to .*, but the store has (0 bytes|other content)'
    ) as said:
        store.save([text()], stamp(2))
        wait_for(lambda: bool(said.list), 20)
        assert statuses(FOLDER)['failed'] == 1
        store.close(20)
    first, second = entries(FOLDER)
    assert (first.status, first.remote, s3.cat('runs/1.2.txt')) == ('removed', 's3://runs/1.2.txt', b'hello')
    assert (second.status, s3.cat('runs/2.txt')) == ('uploaded', b'hello')


def test_a_large_file_is_compared_without_being_read_back(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sent, '_sha256_of_object')
    Path('large').write_bytes(bytes(17 << 20))
    destination = FsspecDestination()
    destination.upload(Path('large'), 's3://runs/large')
    assert '-3' in s3.info('runs/large')['ETag']
    assert destination.compare(Path('large'), 's3://runs/large') == Comparison(True)


def test_files_stay_whose_objects_the_credentials_may_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    destination = MemoryDestination()
    monkeypatch.setattr(destination, 'compare', lambda path, name: Comparison(None, 'the credentials may not read it'))
    store = make_store(destination, 'far/{batch}', keep=0)
    with pytest.warns(MemprofWarning, match='1.txt and later files stay, though they are uploaded: the credentials'):
        store.save([text()], stamp(1))
        store.close(20)
    assert [entry.status for entry in entries(FOLDER)] == ['uploaded']
    assert (FOLDER / 'rank0.1.txt').exists()


def test_a_store_without_an_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    destination, answers = MemoryDestination(), [ConnectionResetError('gone')]

    def compare(path: Path, name: str) -> Comparison:
        if answers:
            raise answers.pop()
        return Comparison(True)

    monkeypatch.setattr(destination, 'compare', compare)
    store = make_store(destination, 'far/{batch}', keep=0)
    for batch in (1, 2):
        store.save([text()], stamp(batch))
        store.flush(20)
    store.close(20)
    assert [entry.status for entry in entries(FOLDER)] == ['removed', 'removed']


def verified(*options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ['push', str(FOLDER), '--verify', '--yes', *options])
    return result.exit_code, result.output


def test_push_verify_lists_what_a_store_has_lost_as_failed_and_then_sends_it_again() -> None:
    store = make_store(FsspecDestination(), 'memory://kept/{batch}')
    for batch in (1, 2, 3):
        store.save([text()], stamp(batch))
    store.close(20)
    assert verified() == (0, 'verified 3 of 3 files\n')
    memory = fsspec.filesystem('memory')
    memory.rm('/kept/1.txt')
    memory.pipe('/kept/2.txt', b'hell')
    code, output = verified()
    assert code == 1
    assert "rank0.1.txt' was uploaded to 'memory://kept/1.txt', but the store does not have it" in output
    assert 'but the store has 4 bytes, and the file 5. The file is kept; push again' in output
    assert 'verified 1 of 3 files\n' in output
    assert statuses(FOLDER) == {'failed': 2, 'uploaded': 1}
    assert verified()[0] == 0
    assert (memory.cat('/kept/1.txt'), memory.cat('/kept/2.2.txt')) == (b'hello', b'hello')


def test_push_verify_asks_for_the_size_of_what_was_removed_here() -> None:
    store = make_store(FsspecDestination(), 'memory://gone/{batch}', keep=0)
    store.save([text()], stamp(1))
    store.close(20)
    assert not (FOLDER / 'rank0.1.txt').exists()
    assert verified('--json')[0] == 0
    fsspec.filesystem('memory').rm('/gone/1.txt')
    code, output = verified('--json')
    assert (code, json.loads(output)['was_sent']) == (1, False)
    assert 'the file here was removed' in json.loads(output)['error']


def test_push_verify_reaches_no_folder_of_this_machine_that_is_not_allowed(tmp_path: Path) -> None:
    store = make_store(FsspecDestination(), f'file://{tmp_path}/{{batch}}')
    store.save([text()], stamp(1))
    store.close(20)
    assert verified()[0] == 2
    assert verified('--allow-local', str(tmp_path)) == (0, 'verified 1 of 1 file\n')
    (tmp_path / '1.txt').write_text('jello')
    assert 'the store has other content' in verified('--allow-local', str(tmp_path))[1]
