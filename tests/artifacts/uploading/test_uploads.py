"""Uploads: what is listed, what is tried again, and how long a close waits."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import fsspec
import pytest

from composer_memprof.artifacts.uploading import uploader as uploading
from composer_memprof.artifacts.uploading.destinations import FsspecDestination
from composer_memprof.artifacts.uploading.process.pool import UploadPool
from composer_memprof.artifacts.uploading.push.push import push
from composer_memprof.messages import MemprofWarning
from tests.conftest import entries, wait_for
from tests.support.stores import FOLDER, MemoryDestination, make_store, stamp, text

# -- uploading ----------------------------------------------------------------------------------------------------


def test_uploads_are_listed_with_their_name_in_the_destination() -> None:
    store = make_store(FsspecDestination(), 'memory://shelf/{run_name}')
    fsspec.filesystem('memory').pipe('/shelf/my-run/rank0.4.txt', b'an earlier run')
    store.save([text('abc')], stamp())
    store.close(20)
    (entry,) = entries(FOLDER)
    assert (entry.status, entry.remote) == ('uploaded', 'memory://shelf/my-run/rank0.4.2.txt')
    memory = fsspec.filesystem('memory')
    assert memory.cat('/shelf/my-run/rank0.4.2.txt') == b'abc'
    assert memory.cat('/shelf/my-run/rank0.4.txt') == b'an earlier run'


def test_a_failed_upload_keeps_the_file_and_says_what_to_do() -> None:
    destination = MemoryDestination()
    destination.error = PermissionError('no entry')
    store = make_store(destination, 'memory://far/{batch}.txt', keep=0)
    with pytest.warns(MemprofWarning, match='composer-memprof push .*run'):
        store.save([text()], stamp())
        store.close(20)
    assert [entry.status for entry in entries(FOLDER)] == ['failed']
    assert (FOLDER / 'rank0.4.txt').exists()


class _Panic(BaseException):
    """As what a client written in Rust raises if it has a bug."""


@pytest.mark.parametrize('kind', [_Panic, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_client_that_raises_no_exception_ends_no_thread_of_the_uploads(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploading, '_pool', UploadPool('small', lambda: 1))
    destination = MemoryDestination()
    destination.error = kind('of the client')
    store = make_store(destination, 'far/{batch}.txt')
    with pytest.warns(MemprofWarning, match=f'failed: .*{kind.__name__}: of the client') as warned:
        store.save([text()], stamp(0))
        wait_for(lambda: len(warned) > 0, 20)
    assert [entry.status for entry in entries(FOLDER)] == ['failed']
    destination.error = None
    store.save([text()], stamp(1))
    store.close(20)
    assert sorted(destination.names) == ['far/0.txt', 'far/1.txt']
    assert {entry.status for entry in entries(FOLDER)} == {'uploaded'}


def test_push_goes_on_if_a_client_raises_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(FsspecDestination(), 'memory://panics/{batch}.txt')
    monkeypatch.setattr(FsspecDestination, 'upload', lambda *_: (_ for _ in ()).throw(_Panic('of the client')))
    with pytest.warns(MemprofWarning, match='_Panic: of the client'):
        for batch in range(2):
            store.save([text()], stamp(batch))
        store.close(20)
    assert [result.error for result in push(FOLDER)] == ['NoExceptionError: _Panic: of the client'] * 2


def test_an_upload_is_tried_again() -> None:
    class Flaky(FsspecDestination):
        tries = 0

        def _upload_once(self, path: Path, name: str) -> str:
            self.tries += 1
            if self.tries < 3:
                raise ConnectionResetError('try again')
            return super()._upload_once(path, name)

    flaky = Flaky()
    store = make_store(flaky, 'memory://flaky')
    store.save([text()], stamp())
    store.close(30)
    assert flaky.tries == 3
    assert [entry.status for entry in entries(FOLDER)] == ['uploaded']


def test_the_close_waits_no_longer_than_its_timeout() -> None:
    slow = MemoryDestination()
    slow.open.clear()
    destination = FsspecDestination()
    destination.upload = slow.upload  # type: ignore[method-assign]
    store = make_store(destination, 'memory://slow')
    store.save([text()], stamp())
    begin = time.monotonic()
    with pytest.warns(MemprofWarning, match='not uploaded within close_timeout'):
        store.close(0.5)
    assert time.monotonic() - begin < 5
    assert [entry.status for entry in entries(FOLDER)] == ['saved']
    slow.open.set()


def test_uploads_that_wait_for_a_thread_are_all_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploading, '_pool', UploadPool('small', lambda: 1))
    destination = MemoryDestination()
    destination.open.clear()
    store = make_store(destination, 'far/{batch}.txt')
    for batch in range(6):
        store.save([text()], stamp(batch))
    time.sleep(0.5)
    destination.open.set()
    store.close(20)
    assert sorted(destination.names) == [f'far/{batch}.txt' for batch in range(6)]
    assert {entry.status for entry in entries(FOLDER)} == {'uploaded'}
