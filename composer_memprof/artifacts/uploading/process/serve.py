"""The main loop of the process that uploads: requests and answers on a socket, one JSON object a line.

The process imports neither Composer nor torch, so that it starts fast and is small.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from composer_memprof.artifacts.uploading.destinations import FsspecDestination
from composer_memprof.artifacts.uploading.limits import files_at_once
from composer_memprof.artifacts.writing.child.work import be_killed_first
from composer_memprof.redaction import one_line
from composer_memprof.signals import STOPPING

#: The first line that the process sends.
READY = b'ready\n'
#: The tasks of a request.
UPLOAD, COMPARE = 'upload', 'compare'
#: The keys of an answer that reports an error.
ERROR, TRACEBACK = 'error', 'traceback'
#: With this niceness, the training gets nine tenths of a core that both want.
_NICENESS = 10
#: Seconds after which a process without work ends. The next upload starts another process.
_IDLE_S = 60.0


def serve_uploads(descriptor: int) -> None:
    """Upload until the training closes its socket, sends nothing for a while, or is gone. Never returns.

    Args:
        descriptor (int): of a socket to the training.
    """
    try:
        for number in STOPPING:  # a launcher may signal the whole group; the training decides when to end
            signal.signal(number, signal.SIG_IGN)
        os.nice(_NICENESS)
        be_killed_first()
        os.set_inheritable(descriptor, False)  # a store's client may start programs
        _Server(socket.socket(fileno=descriptor)).serve()
    finally:
        os._exit(0)


class _Server:
    """Answers requests, several at once.

    Args:
        training (socket): connected to the training.
    """

    def __init__(self, training: socket.socket) -> None:
        self._training = training
        self._parent = os.getppid()
        self._lock = threading.Lock()
        self._requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._left = 0
        self._destinations: dict[str, FsspecDestination] = {}
        training.sendall(READY)
        for _ in range(files_at_once()):
            threading.Thread(target=self._work, daemon=True).start()

    def serve(self) -> None:
        for line in self._lines():
            with self._lock:
                self._left += 1
            self._requests.put(json.loads(line))
        while self._left and os.getppid() == self._parent:
            time.sleep(0.1)

    def _lines(self) -> Iterator[bytes]:
        poll = select.poll()
        poll.register(self._training, select.POLLIN)
        begun, quiet_since = b'', time.monotonic()
        while os.getppid() == self._parent:
            if poll.poll(1000):
                chunk = self._training.recv(1 << 16)
                if not chunk:
                    return
                *lines, begun = (begun + chunk).split(b'\n')
                yield from lines
            if self._left:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > _IDLE_S:
                return

    def _work(self) -> None:
        while True:
            request = self._requests.get()
            number = request.pop('number')
            try:
                answer = self._answer(**request)
            except BaseException as error:  # a store's client may raise anything
                answer = {ERROR: one_line(error), TRACEBACK: traceback.format_exc()}
            line = json.dumps({'number': number, **answer}).encode() + b'\n'
            with self._lock:
                self._training.sendall(line)
                self._left -= 1

    def _answer(
        self, task: str, path: str, name: str, storage_options: dict[str, Any], overwrite: bool
    ) -> dict[str, Any]:
        key = json.dumps([storage_options, overwrite], sort_keys=True)
        with self._lock:
            if key not in self._destinations:
                self._destinations[key] = FsspecDestination(storage_options, overwrite)
        destination = self._destinations[key]
        if task == COMPARE:
            return asdict(destination.compare(Path(path), name))
        return asdict(destination.upload(Path(path), name))
