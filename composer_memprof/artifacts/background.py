"""Work that must not hold up training: lanes (one thread each) and a forked child.

A thread is enough for what waits: on a disk, on a network. What computes in Python would hold the interpreter against
the training loop from a thread too, so it runs in a forked child, which sees the recorded data as it stands.
"""

from __future__ import annotations

import collections
import gc
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

Job = Callable[[], None]


def exiting() -> bool:
    """Whether the interpreter is shutting down: from here on threads and forks can't be had."""
    return sys.is_finalizing() or not threading.main_thread().is_alive()


_exit_deadline: Optional[float] = None


def exit_deadline(timeout: float) -> float:
    """When everything at interpreter exit is to be over: ``timeout`` seconds after the first who asks."""
    global _exit_deadline
    if _exit_deadline is None:
        _exit_deadline = time.monotonic() + timeout
    return _exit_deadline


class Lane:
    """A thread that runs jobs in order. It lives while a holder needs it, and jobs handle their own errors.

    Args:
        name (str): of the thread.
        capacity (int): how many jobs may wait.
    """

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.capacity = capacity
        self._jobs: collections.deque[Job] = collections.deque()
        self._changed = threading.Condition()
        self._holders = 0
        self._thread: Optional[threading.Thread] = None
        self._pid = os.getpid()

    def hold(self) -> None:
        with self._changed:
            if self._pid != os.getpid():  # a forked child has none of its parent's threads
                self._jobs.clear()
                self._holders, self._thread, self._pid = 0, None, os.getpid()
            self._holders += 1

    def release(self) -> None:
        """Ends the thread with its last holder, once the queue is empty."""
        with self._changed:
            self._holders -= 1
            self._changed.notify_all()
            thread = self._thread if self._holders == 0 else None
        if thread is not None and not self._jobs:
            thread.join(timeout=1)

    def submit(self, job: Job) -> bool:
        """Queue ``job``; False where the queue is full.

        Without a thread, at interpreter exit or because none can be had, it runs at once.
        """
        with self._changed:
            if len(self._jobs) >= self.capacity:
                return False
            if self._has_thread():
                self._jobs.append(job)
                self._changed.notify_all()
                return True
        job()
        return True

    def wait_for_room(self, timeout: float) -> bool:
        """Whether a job could be queued, within ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._jobs) < self.capacity, timeout)

    def _has_thread(self) -> bool:
        if self._thread is not None and self._thread.is_alive():
            return True
        if exiting():
            return False
        thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # a limit on threads
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs:
                    if self._holders == 0:
                        self._thread = None
                        return
                    self._changed.wait()
                job = self._jobs.popleft()
                self._changed.notify_all()
            job()
            del job  # it may hold much memory while the lane waits for the next one


class Tally:
    """Counts work that was handed over and is not done, so that someone can wait for it."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def add(self) -> None:
        with self._changed:
            self._count += 1

    def done(self) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait(self, deadline: float) -> bool:
        """Until all is done, or ``deadline`` on the monotonic clock. True: all is done."""
        with self._changed:
            while self._count > 0:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(min(left, threading.TIMEOUT_MAX)):
                    return self._count == 0
        return True


@dataclass
class Child:
    """A forked child at work; :meth:`result` waits for what it found."""

    pid: int
    pipe: int

    def result(self, timeout: float) -> Optional[Any]:
        """What the child's function returned (through JSON), or None where it died or took too long."""
        deadline = time.monotonic() + timeout
        chunks: list[bytes] = []
        try:
            while True:
                ready, _, _ = select.select([self.pipe], [], [], max(0.0, deadline - time.monotonic()))
                if not ready:
                    os.kill(self.pid, signal.SIGKILL)
                    return None
                chunk = os.read(self.pipe, 1 << 16)
                if not chunk:
                    break
                chunks.append(chunk)
        finally:
            os.close(self.pipe)
            try:
                os.waitpid(self.pid, 0)
            except ChildProcessError:  # someone else has reaped it
                pass
        try:
            return json.loads(b''.join(chunks))
        except ValueError:
            return None


def fork(function: Callable[[], Any]) -> Optional[Child]:
    """Start ``function`` in a forked child; None where that can't be had, so that the caller runs it itself.

    The child may read everything, touches no device, and ends without running anyone's exit handlers.
    """
    if sys.platform != 'linux' or exiting():
        return None
    reading, writing = os.pipe()
    # Until the child ignores them, a signal would run the parent's handlers in it.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', DeprecationWarning)  # 3.12 warns of threads, of which the child has none
            pid = os.fork()
        if not pid:
            _be_the_child(function, writing)
    except OSError:  # no memory, or no more processes
        os.close(reading)
        os.close(writing)
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    os.close(writing)
    return Child(pid, reading)


_STOPPING = (signal.SIGTERM, signal.SIGINT)


def _be_the_child(function: Callable[[], Any], pipe: int) -> None:
    """Never returns."""
    try:
        # A launcher that stops the job signals the child too; what was recorded is still to be written.
        for number in _STOPPING:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
        gc.disable()  # collecting would copy the parent's pages
        os.nice(10)
        with os.fdopen(pipe, 'wb') as out:
            out.write(json.dumps(function()).encode())
    except BaseException:
        os.write(2, f'composer_memprof: {traceback.format_exc()}'.encode())
    finally:
        os._exit(0)
