"""What to do where this process, or the machine, has no file left to open: others soon close theirs."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from composer_memprof.artifacts.worker_thread import on_worker_thread

#: How to raise the limit, by the error that it gives.
_LIMITS = {errno.EMFILE: 'ulimit -n', errno.ENFILE: 'sysctl fs.file-max'}
#: How long to wait: on a worker thread, and where it holds up the training.
_WAIT_S, _SHORT_WAIT_S = 2.0, 0.2
_LOOK_EVERY_S = 0.02

_Result = TypeVar('_Result')


def is_no_file_left(error: BaseException) -> bool:
    """Whether ``error`` says that no file can be opened now."""
    return isinstance(error, OSError) and error.errno in _LIMITS


def explained(error: BaseException) -> str:
    """The error, and which limit to raise if no file was left to open."""
    if isinstance(error, OSError) and error.errno in _LIMITS:
        return f'{error}. Raise the limit of open files: {_LIMITS[error.errno]}'
    return str(error)


def once_a_file_is_free(work: Callable[[], _Result]) -> _Result:
    """Run ``work``, and again while it finds no file left to open, for up to two seconds; the training waits 0.2.

    Args:
        work (Callable): opens its file before it does anything that must not be done twice.
    """
    ends = None
    while True:
        try:
            return work()
        except OSError as error:
            now = time.monotonic()
            if ends is None:
                ends = now + (_WAIT_S if on_worker_thread() else _SHORT_WAIT_S)
            if not is_no_file_left(error) or now > ends:
                raise
        time.sleep(_LOOK_EVERY_S)
