"""Uploads in a process of their own, because on a thread they would make each step of the training longer.

The process starts with the first upload and ends when nobody needs it. It has a low priority, and the kernel kills it
before the training if memory runs out. If it dies, another process begins the upload again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import socket
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import fsspec.config
from fsspec.registry import known_implementations, registry

from composer_memprof.artifacts.naming.addresses import client_of, scheme_of
from composer_memprof.artifacts.uploading.destinations import FsspecDestination, Sent
from composer_memprof.artifacts.uploading.process.python_process import environment, start_python
from composer_memprof.artifacts.uploading.process.serve import (
    COMPARE,
    ERROR,
    READY,
    TRACEBACK,
    UPLOAD,
    serve_uploads,
)
from composer_memprof.artifacts.uploading.sent import Comparison
from composer_memprof.artifacts.writing.child.fork import add_own_child, remove_own_child
from composer_memprof.messages import errors_logged, log_error

#: Number of processes that may die during the upload of one file; then the upload has failed.
_ATTEMPTS = 2
#: Number of processes that may fail to start; then files are uploaded in this process.
_STARTS = 3


class UploadFailedError(Exception):
    """An error of the process that uploads.

    Args:
        text (str): type and text of the error, on one line, redacted.
        traceback (str): of the error.
    """

    def __init__(self, text: str, traceback: str = '') -> None:
        super().__init__(text)
        self.traceback = traceback


class _NoProcessError(Exception):
    """No process can be started here."""


class UploadProcess:
    """The process that uploads the files of this process. Several threads may use it."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._running: Optional[_Running] = None
        self._failed_starts = 0

    def upload(self, destination: FsspecDestination, path: Path, name: str) -> Sent:
        """Call :meth:`FsspecDestination.upload` in the other process, or in this process if the other one can't upload.

        Raises:
            UploadFailedError: if the upload failed in the process, or the process was killed.
            Exception: any error of the store's client.
        """
        answer = self._ask(UPLOAD, destination, path, name)
        return destination.upload(path, name) if answer is None else Sent(**answer)

    def compare(self, destination: FsspecDestination, path: Path, name: str) -> Comparison:
        """Call :meth:`FsspecDestination.compare` as :meth:`upload` does, with the same errors."""
        answer = self._ask(COMPARE, destination, path, name)
        return destination.compare(path, name) if answer is None else Comparison(**answer)

    def _ask(self, task: str, destination: FsspecDestination, path: Path, name: str) -> Optional[dict[str, Any]]:
        """The answer of the other process; None if this process has to do the task.

        Raises:
            UploadFailedError: if the task failed in the process, or the process was killed.
        """
        if self._pid != os.getpid():  # the training was forked, and its threads may have had the lock
            self._reset()
        options = _options_elsewhere(destination, name)
        if options is None or self._failed_starts >= _STARTS:
            return None
        about = {'path': str(path), 'name': name, 'storage_options': options, 'overwrite': destination.overwrite}
        for _ in range(_ATTEMPTS):
            try:
                answer = self._usable().ask({'task': task, **about})
            except _NoProcessError:
                log_error('no process that uploads could be started')
                self._failed_starts += 1
                return None
            if answer is not None:
                if ERROR in answer:
                    raise UploadFailedError(answer[ERROR], answer[TRACEBACK])
                return answer
        raise UploadFailedError('the process that uploads was killed, perhaps because memory ran out')

    def stop(self) -> None:
        """Let the process end once it has answered all requests."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._running is not None:
                self._running.end()
            self._running = None

    def _usable(self) -> _Running:
        with self._lock:
            if self._running is not None and not self._running.is_usable():
                self._running.end()
                self._running = None
            if self._running is None:
                try:
                    self._running = _Running()
                except Exception as error:  # a limit on processes or threads, or Python is embedded in a program
                    raise _NoProcessError from error
            return self._running


class _Running:
    """A started process."""

    def __init__(self) -> None:
        self._environment = environment()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, queue.SimpleQueue[Optional[dict[str, Any]]]] = {}
        self._is_ready = self._is_told_to_end = self._has_ended = False
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = start_python(
                serve_uploads,
                theirs.fileno(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        add_own_child(self._process.pid)
        self._reader = threading.Thread(target=self._read_answers, name='memprof-upload-answers', daemon=True)
        try:
            self._reader.start()
        except RuntimeError:
            self._reap()
            raise

    def is_usable(self) -> bool:
        """False if the process has ended, or if the environment, which may have credentials, has changed."""
        return not self._has_ended and self._environment == environment()

    def ask(self, request: Mapping[str, Any]) -> Optional[dict[str, Any]]:
        """Send a request and wait for its answer; None if the process died before it answered.

        Raises:
            _NoProcessError: if the process never began to work.
        """
        answer: queue.SimpleQueue[Optional[dict[str, Any]]] = queue.SimpleQueue()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = answer
            try:
                self._socket.sendall(json.dumps({'number': number, **request}).encode() + b'\n')
            except OSError:  # the process has died, or was told to end
                answer.put(None)
            if self._has_ended:
                answer.put(None)
        found = answer.get()
        if found is None and not self._is_told_to_end:
            self._reader.join()
            if not self._is_ready:
                raise _NoProcessError
        return found

    def end(self) -> None:
        """Let the process end once it has answered all requests."""
        self._is_told_to_end = True
        with contextlib.suppress(OSError):  # the process has died
            self._socket.shutdown(socket.SHUT_WR)

    def _reap(self) -> None:
        self._process.kill()
        self._process.wait()
        remove_own_child(self._process.pid)

    def _read_answers(self) -> None:
        try:
            with errors_logged('the answers of the process that uploads could not be read'):
                self._read()
        finally:
            self._reap()
            with self._lock:
                self._has_ended = True
                self._socket.close()
                left = list(self._waiting.values())
            for waiting in left:
                waiting.put(None)

    def _read(self) -> None:
        with self._socket.makefile('rb') as answers:
            self._is_ready = answers.readline() == READY
            for line in answers if self._is_ready else ():
                answer = json.loads(line)
                with self._lock:
                    waiting = self._waiting.pop(answer.pop('number'))
                waiting.put(answer)


def _options_elsewhere(destination: FsspecDestination, name: str) -> Optional[dict[str, Any]]:
    """The options with which another process reaches the store as this one does; None if it can't."""
    scheme, client = scheme_of(name), client_of(name)
    if type(destination) is not FsspecDestination or scheme is None or client is None:
        return None
    known = known_implementations.get(scheme, {}).get('class', '')
    used = registry[scheme].__module__ if scheme in registry else known
    if any(
        module.partition('.')[0] != client for module in (known, used)
    ):  # the user has registered another filesystem
        return None
    options = {**fsspec.config.conf.get(scheme, {}), **destination.storage_options}
    try:
        return options if json.loads(json.dumps(options)) == options else None
    except (TypeError, ValueError):  # a client's own object
        return None
