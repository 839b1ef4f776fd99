"""A bound on how long reading a file that is not trusted may take.

A few bytes of pickle can keep the interpreter inside of one C call for years (a dict's key of nested tuples is hashed
by ways, not by parts), where neither a signal nor a thread of its own is heard: only another process can end it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

#: A million events take two seconds, and 60 MB.
_SECONDS, _BYTES_PER_SECOND = 60.0, 500_000


def seconds_to_read(paths: Sequence[Path]) -> float:
    """As long as reading these files may take, on a slow machine."""
    return _SECONDS + sum(path.stat().st_size for path in paths if path.is_file()) / _BYTES_PER_SECOND


def go_on_within(seconds: float) -> None:
    """Go on in a child process; this one waits for it, and ends as it ends.

    Raises:
        TimeoutError: in this process, if the child is not done in time; it has then been ended.
        SystemExit: in this process, with the child's code, once it is done.
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
        raise TimeoutError(f'reading was given up after {seconds:.0f} s')
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
