"""Work that must not hold up training: lanes (one thread each) and a forked child.

A thread is enough for what waits: on a disk, on a network. What computes in Python would hold the interpreter against
the training loop from a thread too, so it runs in a forked child, which sees the recorded data as it stands.
"""

from __future__ import annotations

import collections
import contextlib
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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Optional

from composer_memprof.signals import STOPPING, uninterrupted


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


#: Far longer than a child takes that is not stuck, in seconds.
LONGEST_S = 120.0
#: How long one may wait until those before it are done, in seconds.
_LONGEST_WAIT_S = 600.0
#: What a child says that has the locks that it needs; how soon, in seconds; and how many are forked until one does.
_READY, _READY_WITHIN_S, _TRIES = b'ready\n', 0.25, 4


@dataclass
class Job:
    """Work for a lane.

    Args:
        run (Callable): the work, which handles its own errors.
        owner (object): who waits for it.
        begin (Callable, optional): comes before it, on the thread that calls :meth:`Lane.advance`.
    """

    run: Callable[[], None]
    owner: object
    begin: Optional[Callable[[], object]] = None


class Lane:
    """A thread that runs jobs in order. It lives while a holder needs it.

    A job leaves the queue when it is done, so that the queue alone says what is still to be waited for: an exception
    that a signal raises, at whatever line, can't leave a count behind that never comes to nought.

    Args:
        name (str): of the thread.
        capacity (int): how many jobs have room, the one at work included.
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
            thread = self._thread if self._holders == 0 and not self._jobs else None
        if thread is not None:
            thread.join(timeout=1)

    def has_room(self, owner: Optional[object] = None) -> bool:
        """Whether a further job may come, which the first of an ``owner`` always may."""
        if len(self._jobs) < self.capacity:
            return True
        return owner is not None and all(job.owner is not owner for job in list(self._jobs))

    def submit(self, job: Job) -> None:
        """Queue ``job``. Without a thread, at interpreter exit or because none can be had, it runs at once."""
        with self._changed:
            self._jobs.append(job)
            has_thread = self._has_thread()
            self._changed.notify_all()
        if not has_thread:
            self._run_here(job.owner)

    def advance(self) -> None:
        """Begin the next job, where it waits for that. Costs nothing to call when it does not."""
        job = self._jobs[0] if self._jobs else None
        if job is None or job.begin is None:
            return
        with uninterrupted():
            begin = job.begin
            try:
                begin()
            finally:
                with self._changed:
                    job.begin = None
                    self._changed.notify_all()

    def wait(self, owner: object, deadline: float) -> bool:
        """Until no job of ``owner`` is left, or ``deadline`` on the monotonic clock. True: none is left."""
        while any(job.owner is owner for job in list(self._jobs)):
            if time.monotonic() >= deadline:
                return False
            self.advance()
            with self._changed:
                has_thread = self._has_thread()
                if has_thread:
                    left = max(0.0, deadline - time.monotonic())
                    self._changed.wait_for(self._waits_for_someone, min(left, 1.0))
            if not has_thread:
                self._run_here(owner)
        return True

    def _waits_for_someone(self) -> bool:
        return not self._jobs or self._jobs[0].begin is not None

    def _run_here(self, owner: object) -> None:
        for job in [job for job in self._jobs if job.owner is owner]:
            job.begin = None  # at the exit, or without threads, nothing is forked either
            try:
                job.run()
            finally:
                self._jobs.remove(job)

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
                while not self._jobs or self._jobs[0].begin is not None:
                    if self._holders == 0 and not self._jobs:
                        self._thread = None
                        return
                    self._changed.wait()
                job = self._jobs[0]
            job.run()
            with self._changed:
                self._jobs.popleft()
                self._changed.notify_all()
            del job  # it may hold much memory while the lane waits for the next one


@dataclass(frozen=True)
class Fleeting:
    """What a child has to read at once, because it will be gone or have changed.

    Args:
        read (Callable): reads it, and keeps it for the work that follows.
        settle (Callable): takes and gives back every lock that ``read`` takes. A lock that another thread holds at the
            fork is held in the child for good.
    """

    read: Callable[[], object]
    settle: Callable[[], object]


@dataclass
class Child:
    """A forked child at work; :meth:`results` waits for what it finds.

    ``turn``: where it is told to go on, if it waits for that.
    """

    pid: int
    pipe: int
    turn: Optional[int] = None

    def is_ready(self) -> bool:
        """Whether it has the locks that it needs, which it tells of very soon or never."""
        waiting = select.poll()
        waiting.register(self.pipe, select.POLLIN)
        return bool(waiting.poll(1000 * _READY_WITHIN_S)) and os.read(self.pipe, len(_READY)) == _READY

    def results(self, timeout: float) -> list[Any]:
        """What the child's function has yielded (through JSON), as far as it came before it ended or was stopped.

        It is the child's turn now, if it has waited for that.
        """
        self._take_turn()
        deadline = time.monotonic() + timeout
        chunks: list[bytes] = []
        waiting = select.poll()  # select() takes no descriptor above 1023
        waiting.register(self.pipe, select.POLLIN)
        try:
            while True:
                if not waiting.poll(1000 * max(0.0, deadline - time.monotonic())):
                    os.kill(self.pid, signal.SIGKILL)
                    break
                chunk = os.read(self.pipe, 1 << 16)
                if not chunk:
                    break
                chunks.append(chunk)
        finally:
            self._reap()
        *whole, _ = b''.join(chunks).split(b'\n')
        return [json.loads(line) for line in whole]

    def end(self) -> None:
        """Kill it."""
        os.kill(self.pid, signal.SIGKILL)
        if self.turn is not None:
            os.close(self.turn)
        self._reap()

    def _take_turn(self) -> None:
        turn, self.turn = self.turn, None
        if turn is not None:
            with contextlib.suppress(BrokenPipeError):  # it has died, as its results will tell
                os.write(turn, b'.')
            os.close(turn)

    def _reap(self) -> None:
        os.close(self.pipe)
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:  # someone else has reaped it
            pass
        _children.discard(self.pid)


#: The forked children at work.
_children: set[int] = set()


def is_own_child(pid: int) -> bool:
    """Whether ``pid`` is a child that was forked here, and not the user's."""
    return pid in _children


def fork(function: Callable[[], Iterable[Any]], fleeting: Optional[Fleeting] = None) -> Optional[Child]:
    """Start ``function`` in a forked child; None where that can't be had, so that the caller runs it itself.

    The child may read everything, touches no device, and ends without running anyone's exit handlers.

    Args:
        function (Callable): yields what :meth:`Child.results` is to find.
        fleeting (Fleeting, optional): what comes before it, at once; ``function`` then waits until the results are
            asked for. A child that was forked while another thread held a lock is ended, and another is forked.
    """
    if sys.platform != 'linux' or exiting():
        return None
    if fleeting is None:
        return _fork(function, None)
    for _ in range(_TRIES):
        child = _fork(function, fleeting)
        if child is None or child.is_ready():
            return child
        child.end()
    return None


def _fork(function: Callable[[], Iterable[Any]], fleeting: Optional[Fleeting]) -> Optional[Child]:
    pipes: list[int] = []
    # Until the child ignores them, a signal would run the parent's handlers in it.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        pipes += os.pipe()
        if fleeting is not None:
            pipes += os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', DeprecationWarning)  # 3.12 warns of threads, of which the child has none
            if fleeting is not None:
                fleeting.settle()  # it is rare then that another thread holds a lock at the fork
            pid = os.fork()
        if not pid:
            _be_the_child(function, fleeting, pipes)
    except (OSError, RuntimeError):  # no memory, no more files or processes; a device that fails
        for end in pipes:
            os.close(end)
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    reading, writing, *turn = pipes
    os.close(writing)
    for end in turn[:1]:
        os.close(end)
    _children.add(pid)
    return Child(pid, reading, turn[1] if turn else None)


def _be_the_child(function: Callable[[], Iterable[Any]], fleeting: Optional[Fleeting], pipes: list[int]) -> None:
    """Never returns."""
    try:
        # A launcher that stops the job signals the child too; what was recorded is still to be written.
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(LONGEST_S))  # nobody else ends it once the parent is gone
        gc.disable()  # collecting would copy the parent's pages
        if fleeting is not None:
            fleeting.settle()
            os.write(pipes[1], _READY)
        os.nice(10)
        if fleeting is not None:
            fleeting.read()
            _wait_for_turn(*pipes[2:])
        with os.fdopen(pipes[1], 'wb') as out:
            for found in function():
                with contextlib.suppress(BrokenPipeError):  # the parent was killed; the files are still wanted
                    out.write(json.dumps(found).encode() + b'\n')
                    out.flush()
    except BaseException:
        os.write(2, f'composer_memprof: {traceback.format_exc()}'.encode())
    finally:
        os._exit(0)


def _wait_for_turn(turn: int, own_end: int) -> None:
    """Until the parent says so, or has died."""
    os.close(own_end)
    signal.alarm(int(_LONGEST_WAIT_S))
    os.read(turn, 1)
    signal.alarm(int(LONGEST_S))
