"""A proxy in front of a store's HTTP API that fails as networks and stores do."""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Optional
from urllib.parse import urlsplit

_HOP = {'connection', 'transfer-encoding', 'keep-alive', 'content-length', 'date', 'server'}


@dataclass
class Faults:
    """What happens to which share of the requests. Of the others nothing.

    Args:
        errors (float): answered 500 or 503, and not passed on.
        lost (float): passed on, and then never answered: the connection is closed.
        cut (float): the connections are closed once half of the body is passed on.
        stalled (float): held up for ``stall_s`` seconds before they are passed on.
        stall_s (float): in seconds.
        only (str): methods that this happens to, such as ``PUT POST``. Empty: all.
        times (int, optional): how often something happens at most. None: without a limit.
        silent_until (float): on the monotonic clock: until then nothing is answered or passed on.
    """

    errors: float = 0.0
    lost: float = 0.0
    cut: float = 0.0
    stalled: float = 0.0
    stall_s: float = 0.0
    only: str = ''
    times: Optional[int] = None
    silent_until: float = 0.0


def many_faults(stall_s: float = 5.0, silent_s: float = 0.0) -> Faults:
    """Half of the requests fail, each kind of fault among them, after ``silent_s`` seconds of nothing."""
    silent_until = time.monotonic() + silent_s
    return Faults(errors=0.3, lost=0.1, cut=0.05, stalled=0.05, stall_s=stall_s, silent_until=silent_until)


class FaultProxy:
    """Passes requests on to ``endpoint`` and back, with ``faults``, which may be changed at any time.

    Args:
        endpoint (str): such as ``http://127.0.0.1:5000``.
        faults (Faults): at the beginning.
    """

    def __init__(self, endpoint: str, faults: Optional[Faults] = None) -> None:
        self.faults = faults or Faults()
        self.seen: list[str] = []  # method and path of each request
        self.done: list[str] = []  # what happened to each that failed
        self._random = random.Random(14)
        self._lock = threading.Lock()
        self._store = urlsplit(endpoint)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = 'HTTP/1.1'

            def _pass(self) -> None:
                proxy._pass(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self._server.server_address[1]}'

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _fault(self, method: str) -> str:
        faults = self.faults
        if faults.only and method not in faults.only.split():
            return ''
        with self._lock:
            if faults.times == 0:
                return ''
            drawn = self._random.random()
            for name in ('errors', 'lost', 'cut', 'stalled'):
                drawn -= getattr(faults, name)
                if drawn < 0:
                    self.done.append(name)
                    if faults.times is not None:
                        faults.times -= 1
                    return name
        return ''

    def _pass(self, request: BaseHTTPRequestHandler) -> None:
        body = _body_of(request)
        self.seen.append(f'{request.command} {request.path}')
        while time.monotonic() < self.faults.silent_until:
            time.sleep(0.05)
        fault = self._fault(request.command)
        if fault == 'errors':
            status = self._random.choice((500, 503))
            request.send_response(status)
            request.send_header('Content-Length', '0')
            request.end_headers()
            return
        if fault == 'stalled':
            time.sleep(self.faults.stall_s)
        store = http.client.HTTPConnection(self._store.hostname or '', self._store.port, timeout=60)
        try:
            store.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() not in ('transfer-encoding', 'content-length', 'expect', 'connection'):
                    store.putheader(name, value)
            store.putheader('Content-Length', str(len(body)))
            store.endheaders()
            if fault == 'cut' and body:
                store.send(body[: len(body) // 2])
                _break(request)
                return
            store.send(body)
            answer = store.getresponse()
            content = answer.read()
        except OSError:
            _break(request)
            return
        finally:
            store.close()
        if fault == 'lost':
            _break(request)
            return
        request.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP:
                request.send_header(name, value)
        length = answer.getheader('Content-Length') if request.command == 'HEAD' else str(len(content))
        request.send_header('Content-Length', length or '0')
        request.end_headers()
        if request.command != 'HEAD':
            request.wfile.write(content)


def _body_of(request: BaseHTTPRequestHandler) -> bytes:
    if 'chunked' in request.headers.get('Transfer-Encoding', ''):
        chunks = []
        while size := int(request.rfile.readline().split(b';')[0], 16):
            chunks.append(request.rfile.read(size))
            request.rfile.readline()
        request.rfile.readline()
        return b''.join(chunks)
    return request.rfile.read(int(request.headers.get('Content-Length') or 0))


def _break(request: BaseHTTPRequestHandler) -> None:
    """Close the connection without an answer."""
    request.close_connection = True
    request.connection.shutdown(socket.SHUT_RDWR)
