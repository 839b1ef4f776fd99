"""Runs work in a forked child: work that computes, and on a thread would slow the training loop down.

The child has a copy of the recorded data as it is at the fork.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Optional

from composer_memprof.artifacts.exiting import exiting
from composer_memprof.signals import STOPPING

#: A child that takes longer than this is stuck.
CHILD_TIMEOUT_S = 120.0
#: How long a child waits for its turn.
_TURN_TIMEOUT_S = 600.0
#: A child writes _READY when it got its locks. One that does not within the timeout is replaced, in _ATTEMPTS forks.
_READY, _READY_TIMEOUT_S, _ATTEMPTS = b'ready\n', 0.25, 4


@dataclass(frozen=True)
class ReadAtFork:
    """Data that a child must read at once, because it will change.

    Args:
        read (Callable): reads the data and keeps it for the work that follows.
        try_locks (Callable): takes and releases every lock that ``read`` takes. If another thread holds a lock at the
            fork, that lock is never released in the child.
    """

    read: Callable[[], object]
    try_locks: Callable[[], object]


@dataclass
class Child:
    """A running forked child.

    Args:
        pid (int): its process id.
        pipe (int): descriptor from which its results are read.
        turn (int, optional): descriptor to write to when it is the turn of a child that waits.
    """

    pid: int
    pipe: int
    turn: Optional[int] = None

    def is_ready(self) -> bool:
        """True if it got its locks: it writes that very soon or never."""
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        return bool(poll.poll(1000 * _READY_TIMEOUT_S)) and os.read(self.pipe, len(_READY)) == _READY

    def results(self, timeout: float) -> list[Any]:
        """Wait for what the child's function yields, through JSON. After ``timeout`` seconds the child is killed.

        Gives a child that waits its turn. The list is shorter if the child died.
        """
        self._give_turn()
        deadline = time.monotonic() + timeout
        chunks: list[bytes] = []
        poll = select.poll()  # select() takes no descriptor above 1023
        poll.register(self.pipe, select.POLLIN)
        try:
            while True:
                if not poll.poll(1000 * max(0.0, deadline - time.monotonic())):
                    os.kill(self.pid, signal.SIGKILL)
                    break
                chunk = os.read(self.pipe, 1 << 16)
                if not chunk:
                    break
                chunks.append(chunk)
        finally:
            self._reap()
        *lines, _ = b''.join(chunks).split(b'\n')
        return [json.loads(line) for line in lines]

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        if self.turn is not None:
            os.close(self.turn)
        self._reap()

    def _give_turn(self) -> None:
        turn, self.turn = self.turn, None
        if turn is not None:
            with contextlib.suppress(BrokenPipeError):  # it has died; its missing results show that
                os.write(turn, b'.')
            os.close(turn)

    def _reap(self) -> None:
        os.close(self.pipe)
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:  # other code in this process has reaped it
            pass
        _children.discard(self.pid)


#: Process ids of the running children.
_children: set[int] = set()


def is_own_child(pid: int) -> bool:
    """True if ``pid`` was forked here; the user's own processes are not."""
    return pid in _children


def fork(function: Callable[[], Iterable[Any]], read_at_fork: Optional[ReadAtFork] = None) -> Optional[Child]:
    """Run ``function`` in a forked child. Returns None if that is not possible; the caller then runs it itself.

    The child may read all memory, must not use a device, and runs no exit handlers.

    Args:
        function (Callable): yields the values that :meth:`Child.results` returns.
        read_at_fork (ReadAtFork, optional): read first; ``function`` then waits for :meth:`Child.results`. A child that
            can't get its locks is killed, and another one is forked.
    """
    if sys.platform != 'linux' or exiting():
        return None
    if read_at_fork is None:
        return _fork(function, None)
    for _ in range(_ATTEMPTS):
        child = _fork(function, read_at_fork)
        if child is None or child.is_ready():
            return child
        child.kill()
    return None


def _fork(function: Callable[[], Iterable[Any]], read_at_fork: Optional[ReadAtFork]) -> Optional[Child]:
    pipes: list[int] = []
    # Until the child ignores these signals, they would run the parent's handlers in it.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        pipes += os.pipe()
        if read_at_fork is not None:
            pipes += os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', DeprecationWarning)  # 3.12 warns of the parent's threads; none is used here
            if read_at_fork is not None:
                read_at_fork.try_locks()  # waits for a thread that holds one: the child then nearly always gets them
            pid = os.fork()
        if not pid:
            _run_child(function, read_at_fork, pipes)
    except (OSError, RuntimeError):  # out of memory, files or processes; a device error
        for end in pipes:
            os.close(end)
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    results_read, results_write, *turn = pipes
    os.close(results_write)
    for end in turn[:1]:
        os.close(end)
    _children.add(pid)
    return Child(pid, results_read, turn[1] if turn else None)


def _run_child(function: Callable[[], Iterable[Any]], read_at_fork: Optional[ReadAtFork], pipes: list[int]) -> None:
    """Never returns."""
    try:
        # A launcher that stops the job signals the child too, which must still write its files.
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(CHILD_TIMEOUT_S))  # without a parent nothing else ends a stuck child
        gc.disable()  # a collection would write to, and so copy, the parent's pages
        if read_at_fork is not None:
            read_at_fork.try_locks()
            os.write(pipes[1], _READY)
        os.nice(10)
        if read_at_fork is not None:
            read_at_fork.read()
            _wait_for_turn(*pipes[2:])
        with os.fdopen(pipes[1], 'wb') as out:
            for result in function():
                with contextlib.suppress(BrokenPipeError):  # the parent was killed, but the files are still wanted
                    out.write(json.dumps(result).encode() + b'\n')
                    out.flush()
    except BaseException:
        os.write(2, f'composer_memprof: {traceback.format_exc()}'.encode())
    finally:
        os._exit(0)


def _wait_for_turn(turn_read: int, turn_write: int) -> None:
    """Wait until the parent gives the turn, or dies."""
    os.close(turn_write)  # else the parent's death would not end the read
    signal.alarm(int(_TURN_TIMEOUT_S))
    os.read(turn_read, 1)
    signal.alarm(int(CHILD_TIMEOUT_S))
