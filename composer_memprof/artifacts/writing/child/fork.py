"""Runs work in a forked child, because work that computes on a thread would slow the training loop down.

The child has a copy of the recorded data as they are at the fork. ``child.work`` has the steps that the child takes.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from composer_memprof.artifacts.writing.child.memory import memory_excluded
from composer_memprof.artifacts.writing.child.stuck_detector import StuckDetector
from composer_memprof.artifacts.writing.child.work import (
    DONE,
    ERROR,
    READY,
    RESULT,
    SEND_STACK,
    ReadAtFork,
    Work,
    be_killed_first,
    run_in_child,
)
from composer_memprof.artifacts.writing.deadlines import exiting

#: A child that uses no CPU time and moves no bytes for this long is stuck.
STUCK_S = 120.0
#: Seconds between two looks of the parent at its children. The kernel gives a process that it killed for lack of memory two
#: seconds to free its memory, and then kills another one.
_LOOK_EVERY_S = 0.25
#: Seconds within which a child sends its stack.
_STACK_TIMEOUT_S = 0.5
#: A line of that stack.
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
#: The bit of SIGKILL in the signals that a process was sent, as /proc has them.
_KILLED = 1 << (9 - 1)
#: Seconds to wait for a child to acquire its locks. A child that misses this deadline is killed and forked again, up to
#: _ATTEMPTS times.
_READY_TIMEOUT_S, _ATTEMPTS = 0.25, 4
#: The tokenizers library warns at each fork, unless this is set.
_TOKENIZERS = 'TOKENIZERS_PARALLELISM'


@dataclass
class Child:
    """A running forked child.

    Args:
        pid (int): its process id.
        pipe (int): descriptor from which its results are read.
        turn (int, optional): descriptor to write to when it is the turn of a child that waits.

    Attributes:
        failure (str): how it ended before its work was done, ``''`` if it was done; known after :meth:`results`.
        traceback (str): of the error that ended it; of a child that was killed because it was stuck, its stack.
    """

    pid: int
    pipe: int
    turn: Optional[int] = None
    failure: str = field(default='', init=False)
    traceback: str = field(default='', init=False)

    def is_ready(self) -> bool:
        """True if the child has acquired its locks. It reports that very soon or never."""
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        return bool(poll.poll(1000 * _READY_TIMEOUT_S)) and os.read(self.pipe, len(READY)) == READY

    def results(self, timeout: float = math.inf) -> list[Any]:
        """Wait for what the child's function yields, through JSON.

        Tells a child that waits that its turn has come. A child that is stuck, or takes longer than ``timeout`` seconds,
        is killed. The list is shorter if the child did not reach the end of its work; ``failure`` then says why.
        """
        self._give_turn()
        try:
            lines = self._read_lines(timeout)
        finally:
            status = self._reap()
        documents = [json.loads(line) for line in lines]
        errors = [document[ERROR] for document in documents if ERROR in document]
        if errors:
            self.traceback = errors[0]
            self.failure = errors[0].splitlines()[-1]
        elif not self.failure and status is not None and os.WIFSIGNALED(status):
            self.failure = _named_signal(os.WTERMSIG(status))
        elif not self.failure and not any(DONE in document for document in documents):
            self.failure = 'it ended'
        return [document[RESULT] for document in documents if RESULT in document]

    def _read_lines(self, timeout: float) -> list[bytes]:
        deadline = time.monotonic() + timeout
        detector = StuckDetector(self.pid, STUCK_S)
        chunks: list[bytes] = []
        poll = select.poll()  # select() takes no descriptor above 1023
        poll.register(self.pipe, select.POLLIN)
        while not self.failure:
            hurry(_is_killed)
            left = deadline - time.monotonic()
            if poll.poll(1000 * max(0.0, min(left, _LOOK_EVERY_S))):
                chunk = os.read(self.pipe, 1 << 16)
                if not chunk:
                    break
                chunks.append(chunk)
                if _is_last(chunk):  # the end of the pipe may never come: a process forked meanwhile may hold it open
                    break
            elif left <= 0:
                self.failure = f'it took longer than {timeout:g} s'
            elif detector.is_stuck():
                self.failure = f'it was stuck for {STUCK_S:g} s'
        if self.failure:
            with contextlib.suppress(ProcessLookupError):  # other code in this process has reaped it
                self._ask_for_stack(poll)
                os.kill(self.pid, signal.SIGKILL)
        *lines, _ = b''.join(chunks).split(b'\n')
        return lines

    def _ask_for_stack(self, poll: select.poll) -> None:
        """Note where the child is."""
        os.kill(self.pid, SEND_STACK)
        while poll.poll(1000 * _STACK_TIMEOUT_S) and (chunk := os.read(self.pipe, 1 << 16)):
            self.traceback += chunk.decode(errors='replace')
        frame = _FRAME.search(self.traceback)
        if frame is not None:
            self.failure += f' in {os.path.basename(frame["file"])}:{frame["line"]} {frame["function"]}'

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

    def _reap(self) -> Optional[int]:
        """Wait for the end of the child; returns its exit status, or None if other code has taken that."""
        os.close(self.pipe)
        remove_own_child(self.pid)
        try:
            return os.waitpid(self.pid, 0)[1]
        except ChildProcessError:  # other code in this process has reaped it
            return None


def _is_last(chunk: bytes) -> bool:
    """True if a child's message ends with the document that ends its work."""
    lines = chunk.splitlines(keepends=True)
    return lines[-1].startswith((f'{{"{DONE}"'.encode(), f'{{"{ERROR}"'.encode())) and lines[-1].endswith(b'\n')


def _named_signal(number: int) -> str:
    name = signal.strsignal(number) or f'signal {number}'
    return f'{name}, perhaps because memory ran out' if number == signal.SIGKILL else name


#: Process ids of the running children.
_children: set[int] = set()


def is_own_child(pid: int) -> bool:
    """True if ``pid`` is a process of this package; the user's own processes are not."""
    return pid in _children


def add_own_child(pid: int) -> None:
    """Note a process that was started for this package."""
    _children.add(pid)


def remove_own_child(pid: int) -> None:
    """Forget a process of this package that has ended."""
    _children.discard(pid)


def _is_killed(pid: int) -> bool:
    """True if the child was sent SIGKILL. A child of low priority frees its memory, which others need, slowly."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f'/proc/{pid}/status').read_text().splitlines()
        sent = next(line for line in lines if line.startswith('ShdPnd:'))
        return bool(int(sent.split()[1], 16) & _KILLED)
    return False


def hurry(which: Callable[[int], bool] = lambda pid: True) -> None:
    """Give children the priority of this process, because somebody waits for them. Does nothing without the right to.

    Args:
        which (Callable): takes a process id, and returns whether that child is meant. Default: all.
    """
    for pid in filter(which, list(_children)):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0))


def fork(
    function: Callable[[], Iterable[Any]],
    read_at_fork: Optional[ReadAtFork] = None,
    *,
    in_turn: bool = False,
    in_background: bool = True,
    keep: Collection[int] = (),
) -> Optional[Child]:
    """Run ``function`` in a forked child. Returns None if that is not possible; the caller then runs it itself.

    The child may read all memory, must not use a device, and runs no exit handlers.

    Args:
        function (Callable): yields the values that :meth:`Child.results` returns.
        read_at_fork (ReadAtFork, optional): data that the child reads before it waits for its turn. A child that can't
            acquire the locks is killed, and another one is forked.
        in_turn (bool): ``function`` waits for :meth:`Child.results`, or for the parent's death.
        in_background (bool): the child has the lowest priority, and does not get the training's weights. False if the
            training waits for it.
        keep (Collection[int]): descriptors that the child needs; the others are closed in it.
    """
    if sys.platform != 'linux' or exiting():
        return None
    work = Work(function, read_at_fork, in_turn or read_at_fork is not None, in_background, frozenset(keep))
    if read_at_fork is None:
        return _fork(work)
    for _ in range(_ATTEMPTS):
        child = _fork(work)
        if child is None or child.is_ready():
            return child
        child.kill()
    return None


def _fork(work: Work) -> Optional[Child]:
    pipes: list[int] = []
    parent = os.getpid()
    # Until the child ignores them, signals would run the parent's handlers in the child.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pipes += os.pipe()
        if work.in_turn:
            pipes += os.pipe()
        results_read, results_write, *turn = pipes
        if work.read_at_fork is not None:
            work.read_at_fork.try_locks()  # waits for a thread that holds a lock, so that the lock is nearly always free in the child
        exclusion = memory_excluded() if work.in_background else contextlib.nullcontext()
        with warnings.catch_warnings(), _quiet_tokenizers(), exclusion:
            warnings.simplefilter(
                'ignore', DeprecationWarning
            )  # 3.12 warns of forks beside threads; the child uses no thread
            pid = os.fork()
        if not pid:
            run_in_child(work, pipes, parent)
        be_killed_first(pid)  # on a busy machine memory may run out before the child has run at all
    except (OSError, RuntimeError):  # out of memory, files or processes; a device error
        for end in pipes:
            os.close(end)
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for end in (results_write, *turn[:1]):
        os.close(end)
    add_own_child(pid)
    return Child(pid, results_read, turn[1] if turn else None)


@contextlib.contextmanager
def _quiet_tokenizers() -> Iterator[None]:
    """The tokenizers library has a handler of forks, which warns on stderr unless its variable is set.

    The variable is set during this fork only, so that forks of the user are still warned of.
    """
    if 'tokenizers' not in sys.modules or _TOKENIZERS in os.environ:
        yield
        return
    os.environ[_TOKENIZERS] = 'false'
    try:
        yield
    finally:
        del os.environ[_TOKENIZERS]
