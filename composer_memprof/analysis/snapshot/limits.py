"""Limits on the time and memory that reading an untrusted file may take. Both are limits of a whole process.

A few bytes of pickle can keep the interpreter inside one C call for years (the hash of a deeply nested tuple), where
no signal handler and no other thread runs. Others make one C call allocate gigabytes. So the command reads in a child
process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

try:
    import resource
except ImportError:  # not on this platform: memory is not limited
    resource = None  # type: ignore[assignment]

#: A snapshot of a million events, 60 MB, takes two seconds.
_SECONDS, _BYTES_PER_SECOND = 60.0, 500_000


def seconds_to_read(paths: Sequence[Path]) -> float:
    """The longest that reading these files may take, on a slow machine."""
    return _SECONDS + sum(path.stat().st_size for path in paths if path.is_file()) / _BYTES_PER_SECOND


def run_in_child_with_time_limit(seconds: float) -> None:
    """Fork, and return in the child. The parent waits for the child and exits with its exit code.

    Without ``os.fork`` it returns at once, and time is not limited.

    Raises:
        TimeoutError: in the parent, if the child took longer; it was killed.
        SystemExit: in the parent, when the child has ended.
    """
    if not hasattr(os, 'fork'):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        return
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                child = 0
                code = os.waitstatus_to_exitcode(status)
                raise SystemExit(code if code >= 0 else 128 - code)
            time.sleep(0.01)
        raise TimeoutError(f'reading took longer than {seconds:.0f} s and was stopped')
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@contextlib.contextmanager
def process_memory_limit(more: int) -> Iterator[None]:
    """Let this process allocate at most ``more`` bytes of address space, and no more than the machine has free.

    It limits every thread of the process, so use it only in a process of your own, such as the command's child.
    """
    pages = _first_number(Path('/proc/self/statm'))
    if resource is None or pages is None:
        yield
        return
    free = _available()
    limit = pages * os.sysconf('SC_PAGESIZE') + (more if free is None else min(more, free))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    unlimited = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, (limit if soft == unlimited else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _first_number(path: Path) -> int | None:
    """Of a file of /proc."""
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _available() -> int | None:
    """Bytes of memory that the machine has free."""
    try:
        for line in Path('/proc/meminfo').read_text().splitlines():
            if line.startswith('MemAvailable:'):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
