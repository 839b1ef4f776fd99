"""An S3 API that takes whatever is uploaded and keeps nothing: it costs next to no CPU, so that the client's cost shows."""

from __future__ import annotations

import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.fault_proxy import FaultProxy, many_faults

_HEAD = '<?xml version="1.0" encoding="UTF-8"?>'
_STARTED = f'{_HEAD}<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>'
_COMPLETED = f'{_HEAD}<CompleteMultipartUploadResult><ETag>"1"</ETag></CompleteMultipartUploadResult>'
_LISTED = f'{_HEAD}<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>'


class _Sink(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def _take(self) -> None:
        left, buffer = int(self.headers.get('Content-Length') or 0), memoryview(bytearray(1 << 20))
        while left:
            left -= self.rfile.readinto(buffer[: min(left, len(buffer))])  # type: ignore[attr-defined]

    def _answer(self, body: str = '', status: int = 200) -> None:
        self.send_response(status)
        self.send_header('ETag', '"1"')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_HEAD(self) -> None:
        self._answer(status=404)

    def do_GET(self) -> None:
        self._answer(_LISTED)

    def do_PUT(self) -> None:
        self._take()
        self._answer()

    def do_POST(self) -> None:
        self._take()
        self._answer(_STARTED if self.path.endswith('uploads') else _COMPLETED)

    def log_message(self, *arguments: object) -> None:
        pass


def start_sink(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """The process and its address; with ``faults`` many requests fail on their way to it."""
    from tests.conftest import child_environment  # imports torch, which the sink does not need

    command = [sys.executable, '-m', 'tests.support.sink', *arguments]
    process = subprocess.Popen(command, env=child_environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


if __name__ == '__main__':
    server = ThreadingHTTPServer(('127.0.0.1', 0), _Sink)
    server.daemon_threads = True
    address = f'http://127.0.0.1:{server.server_address[1]}'
    if 'faults' in sys.argv:
        address = FaultProxy(address, many_faults()).url
    print(address, flush=True)
    server.serve_forever()
