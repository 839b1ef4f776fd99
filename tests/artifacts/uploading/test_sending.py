"""A store with real folders keeps what it has of a file when a connection breaks. It is never seen under its name."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from composer_memprof.artifacts.uploading.destinations import FsspecDestination

pytest.importorskip('pyftpdlib')


class Server:
    """An FTP server on loopback for one folder, which breaks the next ``cuts`` connections within a file."""

    def __init__(self, folder: Path) -> None:
        from pyftpdlib.authorizers import DummyAuthorizer
        from pyftpdlib.handlers import DTPHandler, FTPHandler
        from pyftpdlib.servers import FTPServer

        server = self
        self.cuts = 0

        class Cut(DTPHandler):
            def handle_read(self) -> None:
                super().handle_read()
                if server.cuts and self.receive and self.get_transmitted_bytes():
                    server.cuts -= 1
                    self.file_obj.flush()
                    self.close()
                    self.cmd_channel.close()

            handle_read_event = handle_read  # the base class has this second name too

        class Handler(FTPHandler):  # type: ignore[misc]
            authorizer = DummyAuthorizer()
            dtp_handler = Cut

        Handler.authorizer.add_user('me', 'word', str(folder), perm='elradfmwMT')
        self._server = FTPServer(('127.0.0.1', 0), Handler)
        self.port = self._server.address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={'timeout': 0.1, 'handle_exit': False}
        )
        self._thread.start()

    def close(self) -> None:
        self._server.ioloop.call_later(0, self._server.close_all)
        self._thread.join(10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / 'served'
    made.mkdir()
    return made


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    made = Server(folder)
    yield made
    made.close()


def options(server: Server) -> dict[str, Any]:
    return {'port': server.port, 'username': 'me', 'password': 'word'}


def test_a_file_gets_its_name_once_it_is_whole(server: Server, folder: Path, tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    path = tmp_path / 'file.bin'
    path.write_bytes(content)
    destination = FsspecDestination(options(server))
    server.cuts = 1
    with pytest.raises((OSError, EOFError)):
        destination._upload_once(path, 'ftp://127.0.0.1/runs/file.bin')
    (partial,) = (each for each in folder.rglob('*') if each.is_file())
    assert partial.name.startswith('.memprof.') and 0 < partial.stat().st_size < len(content)
    server.cuts = 2
    sent = [destination.upload(path, 'ftp://127.0.0.1/runs/file.bin').name for _ in range(2)]
    assert sent == ['ftp://127.0.0.1/runs/file.bin'] * 2  # the second finds its own copy
    assert {each.name: each.read_bytes() for each in (folder / 'runs').iterdir()} == {'file.bin': content}


class Connection(MemoryFileSystem):
    """The first one breaks at its first file, as one of ``sftp`` may."""

    protocol = 'connection'
    store: ClassVar[dict[str, Any]] = {}
    made: ClassVar[list[Connection]] = []

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.made.append(self)

    def put_file(self, *arguments: Any, **options: Any) -> None:
        if self is self.made[0]:
            raise OSError('Socket is closed')
        super().put_file(*arguments, **options)


def test_a_broken_connection_is_not_used_again(tmp_path: Path) -> None:
    fsspec.register_implementation('connection', Connection, clobber=True)
    path = tmp_path / 'file.bin'
    path.write_bytes(b'content')
    for _ in range(2):
        assert FsspecDestination().upload(path, 'connection://runs/file.bin').name == 'connection://runs/file.bin'
    assert [file.getvalue() for file in Connection.store.values()] == [b'content']
    assert len(Connection.made) == 2


def test_overwrite_replaces_a_file_and_leaves_no_part(server: Server, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / 'file.bin'
    destination = FsspecDestination(options(server), overwrite=True)
    for content in (b'old', b'newer'):
        path.write_bytes(content)
        destination.upload(path, 'ftp://127.0.0.1/runs/file.bin')
    assert {each.name: each.read_bytes() for each in (folder / 'runs').iterdir()} == {'file.bin': b'newer'}
