"""A forked child: for what computes, which would hold the interpreter against the training loop from a thread.

The child sees the recorded data as it stands.
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

#: Far longer than a child takes that is not stuck, in seconds.
LONGEST_S = 120.0
#: How long one may wait until those before it are done, in seconds.
_LONGEST_WAIT_S = 600.0
#: What a child says that has the locks that it needs; how soon, in seconds; and how many are forked until one does.
_READY, _READY_WITHIN_S, _TRIES = b'ready\n', 0.25, 4


@dataclass(frozen=True)
class ReadAtFork:
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


def fork(function: Callable[[], Iterable[Any]], read_at_fork: Optional[ReadAtFork] = None) -> Optional[Child]:
    """Start ``function`` in a forked child; None where that can't be had, so that the caller runs it itself.

    The child may read everything, touches no device, and ends without running anyone's exit handlers.

    Args:
        function (Callable): yields what :meth:`Child.results` is to find.
        read_at_fork (ReadAtFork, optional): what comes before it, at once; ``function`` then waits until the results are
            asked for. A child that was forked while another thread held a lock is ended, and another is forked.
    """
    if sys.platform != 'linux' or exiting():
        return None
    if read_at_fork is None:
        return _fork(function, None)
    for _ in range(_TRIES):
        child = _fork(function, read_at_fork)
        if child is None or child.is_ready():
            return child
        child.end()
    return None


def _fork(function: Callable[[], Iterable[Any]], read_at_fork: Optional[ReadAtFork]) -> Optional[Child]:
    pipes: list[int] = []
    # Until the child ignores them, a signal would run the parent's handlers in it.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        pipes += os.pipe()
        if read_at_fork is not None:
            pipes += os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', DeprecationWarning)  # 3.12 warns of threads, of which the child has none
            if read_at_fork is not None:
                read_at_fork.settle()  # it is rare then that another thread holds a lock at the fork
            pid = os.fork()
        if not pid:
            _be_the_child(function, read_at_fork, pipes)
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


def _be_the_child(function: Callable[[], Iterable[Any]], read_at_fork: Optional[ReadAtFork], pipes: list[int]) -> None:
    """Never returns."""
    try:
        # A launcher that stops the job signals the child too; what was recorded is still to be written.
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(LONGEST_S))  # nobody else ends it once the parent is gone
        gc.disable()  # collecting would copy the parent's pages
        if read_at_fork is not None:
            read_at_fork.settle()
            os.write(pipes[1], _READY)
        os.nice(10)
        if read_at_fork is not None:
            read_at_fork.read()
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
