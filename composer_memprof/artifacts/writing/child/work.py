"""What a forked child does: it steps back behind the training, waits for its turn, works, and sends its results.

It is killed before the training if memory runs out, runs when nothing else wants to, and holds open nothing of it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import signal
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Optional

from composer_memprof.signals import STOPPING

#: The child writes it first, if it has to get locks.
READY = b'ready\n'
#: The keys of the documents that it then sends, one a line. The last one is DONE or ERROR.
RESULT, DONE, ERROR = 'result', 'done', 'error'
#: No child works longer, not even one whose parent is gone.
_LONGEST_S = 3600
_OOM_SCORE = Path('/proc/self/oom_score_adj')
_KILLED_FIRST = '1000'
_LOWEST_PRIORITY = 19


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


@dataclass(frozen=True)
class Work:
    """What a child is forked for.

    Args:
        function (Callable): yields the results.
        read_at_fork (ReadAtFork, optional): read before the child waits for its turn.
        in_turn (bool): ``function`` waits for the parent's word, or its death.
        in_background (bool): the child gives way to everything else that runs.
        keep (frozenset[int]): the descriptors that it needs.
    """

    function: Callable[[], Iterable[Any]]
    read_at_fork: Optional[ReadAtFork]
    in_turn: bool
    in_background: bool
    keep: frozenset[int]


def run_in_child(work: Work, pipes: Sequence[int], parent: int) -> None:
    """In the child. Never returns.

    Args:
        work (Work): to do.
        pipes (Sequence[int]): both ends of the pipe for results; then, if the child waits for the parent's word, both
            ends of the pipe for that.
        parent (int): its process id.
    """
    try:
        results_read, results, *of_turn = pipes
        turn, turn_write = of_turn[:1], of_turn[1:]
        for end in (
            results_read,
            *turn_write,
        ):  # the training may have no more files to open: these two are the child's
            os.close(end)
        with os.fdopen(results, 'wb') as out:
            try:
                _ignore_signals()
                gc.disable()  # a collection would write to, and so copy, the parent's pages
                be_killed_first()
                _raise_limit_of_files()
                _detach_inherited({results, *turn, *work.keep})
                _run(work, out, turn, parent)
                _send(out, {DONE: True})
            except BaseException:
                _send(out, {ERROR: traceback.format_exc()})
    finally:
        os._exit(0)


def _ignore_signals() -> None:
    """Those that stop the job: a launcher sends them to the child too, which must still write its files. And those that
    the training handles: its handlers are not for the child.
    """
    for number in signal.valid_signals():
        if number in STOPPING or callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.alarm(_LONGEST_S)  # without a parent nothing else ends a stuck child


def _run(work: Work, out: BinaryIO, turn: Sequence[int], parent: int) -> None:
    if work.read_at_fork is not None:
        work.read_at_fork.try_locks()
        os.write(out.fileno(), READY)
    if work.in_background:
        _lower_priority()
    if work.read_at_fork is not None:
        work.read_at_fork.read()
    if work.in_turn:
        signal.alarm(0)
        _wait_for(turn[0], parent)
        signal.alarm(_LONGEST_S)
    for result in work.function():
        _send(out, {RESULT: result})


def _wait_for(turn: int, parent: int) -> None:
    """Wait for the parent's word, or its death. Another child may hold the pipe open longer than the parent lives."""
    poll = select.poll()
    poll.register(turn, select.POLLIN)
    while os.getppid() == parent and not poll.poll(1000):
        pass


def _send(out: BinaryIO, document: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent was killed, but the files are still wanted
        out.write(json.dumps(document).encode() + b'\n')
        out.flush()


def be_killed_first() -> None:
    """Where memory runs out, the kernel kills this process before any other."""
    with contextlib.suppress(OSError):
        _OOM_SCORE.write_text(_KILLED_FIRST)


def _raise_limit_of_files() -> None:
    """The training may have no file left to open. What this child may open beyond that takes nothing from it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _detach_inherited(keep: Collection[int]) -> None:
    """Close what was inherited: the training's ports, locks, pipes and terminal.

    Each descriptor stays open on nothing, so that its number is not taken: an object of the parent may still close it.
    One above a limit that was lowered since is closed: nothing takes its number.
    """
    inherited = list(map(int, os.listdir('/proc/self/fd')))  # among them the list's own, which is closed by now
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in inherited:
        if descriptor not in keep and descriptor != nothing and _is_open(descriptor):
            try:
                os.dup2(nothing, descriptor)
            except OSError:
                os.close(descriptor)
    os.close(nothing)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _lower_priority() -> None:
    """Run only on a core that nobody else wants."""
    with contextlib.suppress(OSError):
        os.nice(_LOWEST_PRIORITY)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
