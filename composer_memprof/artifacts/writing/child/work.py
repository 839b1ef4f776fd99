"""The steps of a forked child: it lowers its priority, waits for its turn, works, and sends its results.

If memory runs out, the kernel kills the child before the training. The child holds no file or port of the training open.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import logging
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Optional

from composer_memprof.signals import STOPPING

try:
    import resource
except ImportError:  # Windows, where nothing forks
    resource = None  # type: ignore[assignment]

#: The first message of a child that has to acquire locks: it has them.
READY = b'ready\n'
#: The keys of the documents that a child sends, one a line. The last document has DONE or ERROR.
RESULT, DONE, ERROR = 'result', 'done', 'error'
#: Seconds after which a child ends even if its parent is gone.
_LONGEST_S = 3600
_KILLED_FIRST = '1000'
#: The signal that makes a child send its stack, in place of a document. A child that waits for a lock answers too.
SEND_STACK: int = getattr(signal, 'SIGUSR2', 0)
_LOWEST_PRIORITY = 19


@dataclass(frozen=True)
class ReadAtFork:
    """Data that a child must read at once, because they will change.

    Args:
        read (Callable): reads the data and keeps them for the work that follows.
        try_locks (Callable): takes and releases every lock that ``read`` takes. If another thread holds a lock at the
            fork, that lock is never released in the child.
    """

    read: Callable[[], object]
    try_locks: Callable[[], object]


@dataclass(frozen=True)
class Work:
    """The work of one child.

    Args:
        function (Callable): yields the results.
        read_at_fork (ReadAtFork, optional): data to read before the child waits for its turn.
        in_turn (bool): ``function`` starts when the parent says so, or has died.
        in_background (bool): the child has the lowest priority.
        keep (frozenset[int]): the descriptors that the child needs.
    """

    function: Callable[[], Iterable[Any]]
    read_at_fork: Optional[ReadAtFork]
    in_turn: bool
    in_background: bool
    keep: frozenset[int]


def run_in_child(work: Work, pipes: Sequence[int], parent: int) -> None:
    """Do ``work`` in the child. Never returns.

    Args:
        work (Work): to do.
        pipes (Sequence[int]): both ends of the pipe for results; for a child that waits for its turn, then both ends of
            the pipe by which the parent tells it.
        parent (int): the process id of the parent.
    """
    try:
        results_read, results, *of_turn = pipes
        turn, turn_write = of_turn[:1], of_turn[1:]
        # First: the training may have no descriptor left, and the child needs two.
        for end in (results_read, *turn_write):
            os.close(end)
        with os.fdopen(results, 'wb') as out:
            try:
                _ignore_signals()
                faulthandler.register(SEND_STACK, file=results, all_threads=False)
                _forget_streams()
                gc.disable()  # a collection would write to, and so copy, the parent's pages
                be_killed_first()  # the parent may have had no descriptor left to say so
                _raise_limit_of_files()
                _detach_inherited({results, *turn, *work.keep})
                _run(work, out, turn, parent)
                _send(out, {DONE: True})
            except BaseException:
                _send(out, {ERROR: traceback.format_exc()})
    finally:
        os._exit(0)


def _ignore_signals() -> None:
    """Ignore signals that stop the job, so that the child can finish writing when a launcher signals the whole process
    group; and signals with a Python handler, which belongs to the training.
    """
    for number in signal.valid_signals():
        if number in STOPPING or callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.alarm(_LONGEST_S)  # without a parent nothing else ends a stuck child


#: Streams of the training. Without a reference they would be flushed, for which they take their locks.
_inherited: list[object] = []


def _forget_streams() -> None:
    """Take no lock of a stream, a log or a profiler, which another thread of the training may have held at the fork."""
    sys.setprofile(None)
    sys.settrace(None)
    _inherited.extend((sys.stdout, sys.stderr))
    sys.stdout = sys.stderr = open(os.devnull, 'w')  # noqa: SIM115 - open until the child ends
    logging.disable(logging.CRITICAL)
    warnings.simplefilter('ignore')


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
    """Wait until the parent says that it is this child's turn, or has died.

    The end of the pipe does not show the death: another child may hold the pipe open.
    """
    poll = select.poll()
    poll.register(turn, select.POLLIN)
    while os.getppid() == parent and not poll.poll(1000):
        pass


def _send(out: BinaryIO, document: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent was killed, but the files are still wanted
        out.write(json.dumps(document).encode() + b'\n')
        out.flush()


def be_killed_first(pid: Optional[int] = None) -> None:
    """Ask the kernel to kill a process, by default this one, before all others if memory runs out."""
    with contextlib.suppress(OSError):  # it has ended
        Path(f'/proc/{pid or "self"}/oom_score_adj').write_text(_KILLED_FIRST)


def _raise_limit_of_files() -> None:
    """Raise the limit of open files to the hard limit: the training may have reached its own, which the child inherits."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _detach_inherited(keep: Collection[int]) -> None:
    """Point all inherited descriptors except ``keep`` to /dev/null: the training's ports, locks, pipes and terminal.

    They are not closed, because an object of the parent may still close its descriptor, whose number could by then be
    another file's. A number above the limit is never reused, so that descriptor is closed.
    """
    inherited = list(
        map(int, os.listdir('/proc/self/fd'))
    )  # with the descriptor of the listing itself, which is closed by now
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
