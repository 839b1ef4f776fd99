"""Uploads in a process of their own. On a thread of the training, their work would make each of its steps longer.

The process starts with the first upload and ends when nobody needs it. It has a low priority, and is killed before the
training where memory runs out. If it dies, another one begins the upload again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from fsspec.registry import known_implementations, registry

from composer_memprof.artifacts.addresses import is_of_extra, scheme_of
from composer_memprof.artifacts.destinations import FsspecDestination, Sent
from composer_memprof.artifacts.python_process import start_python
from composer_memprof.artifacts.upload_server import ERROR, READY, TRACEBACK, serve_uploads
from composer_memprof.messages import log_error

#: A file that has seen so many processes die is not uploaded.
_ATTEMPTS = 2


class UploadFailedError(Exception):
    """An error of the process that uploads.

    Args:
        text (str): its type and text, on one line, redacted.
        traceback (str): of it.
    """

    def __init__(self, text: str, traceback: str = '') -> None:
        super().__init__(text)
        self.traceback = traceback


class _NoProcessError(Exception):
    """No process can be started here."""


class UploadProcess:
    """The process that uploads for this one. Used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Optional[_Running] = None
        self._can_start = True

    def upload(self, destination: FsspecDestination, path: Path, name: str) -> Sent:
        """As :meth:`FsspecDestination.upload`; that is called where another process can't do it.

        Raises:
            UploadFailedError: if the upload failed in the process, or the process was killed.
            Exception: what a store's client raises.
        """
        if not self._can_start or not _another_process_can(destination, name):
            return destination.upload(path, name)
        request = {
            'path': str(path),
            'name': name,
            'storage_options': destination.storage_options,
            'overwrite': destination.overwrite,
        }
        for _ in range(_ATTEMPTS):
            try:
                answer = self._usable().ask(request)
            except _NoProcessError:
                log_error('no process that uploads could be started')
                self._can_start = False
                return destination.upload(path, name)
            if answer is not None:
                return _sent(answer)
        raise UploadFailedError('the process that uploads was killed, perhaps because memory ran out')

    def stop(self) -> None:
        """Nobody needs it any more: it ends once it has done what it was asked for."""
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
                except (OSError, RuntimeError) as error:  # a limit on processes or threads
                    raise _NoProcessError from error
            return self._running


class _Running:
    """A started process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._environment = dict(os.environ)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, queue.SimpleQueue[Optional[dict[str, Any]]]] = {}
        self._is_ready = self._has_ended = False
        self._process = start_python(serve_uploads, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        try:
            threading.Thread(target=self._read_answers, name='memprof-upload-answers', daemon=True).start()
        except RuntimeError:
            self.end()
            raise

    def is_usable(self) -> bool:
        """False if it has ended, in a forked child, and if the environment, which may have credentials, has changed."""
        return not self._has_ended and self._pid == os.getpid() and self._environment == dict(os.environ)

    def ask(self, request: Mapping[str, Any]) -> Optional[dict[str, Any]]:
        """Wait for the answer; None if the process has died meanwhile.

        Raises:
            _NoProcessError: if it never began to work.
        """
        answer: queue.SimpleQueue[Optional[dict[str, Any]]] = queue.SimpleQueue()
        with self._lock:
            try:
                number = next(self._numbers)
                self._requests.write(json.dumps({'number': number, **request}).encode() + b'\n')
                self._requests.flush()
                self._waiting[number] = answer
            except (OSError, ValueError):  # it has died, or was told to end
                answer.put(None)
            if self._has_ended:
                answer.put(None)
        found = answer.get()
        if found is None and not self._is_ready:
            raise _NoProcessError
        return found

    def end(self) -> None:
        with self._lock, contextlib.suppress(OSError):  # it has died
            self._requests.close()

    def _read_answers(self) -> None:
        self._is_ready = self._answers.readline() == READY
        for line in self._answers:
            answer = json.loads(line)
            with self._lock:
                waiting = self._waiting.pop(answer.pop('number'))
            waiting.put(answer)
        with self._lock:
            self._has_ended = True
            left, self._waiting = list(self._waiting.values()), {}
        for waiting in left:
            waiting.put(None)
        self._answers.close()
        self._process.wait()


def _sent(answer: dict[str, Any]) -> Sent:
    if ERROR in answer:
        raise UploadFailedError(answer[ERROR], answer[TRACEBACK])
    return Sent(**answer)


def _another_process_can(destination: FsspecDestination, name: str) -> bool:
    """Whether another process reaches the store as this one does: with the same client, and the same options."""
    if type(destination) is not FsspecDestination or not is_of_extra(name):
        return False
    scheme = scheme_of(name) or ''
    used, known = registry.get(scheme), known_implementations[scheme]['class']
    if used is not None and used.__module__.partition('.')[0] != known.partition('.')[0]:
        return False
    try:
        return json.loads(json.dumps(destination.storage_options)) == destination.storage_options
    except (TypeError, ValueError):  # a client's own object
        return False
