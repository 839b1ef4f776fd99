"""Errors of a process, or a machine, that is out of file descriptors: how to recognize, explain and retry them."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from composer_memprof.artifacts.writing.worker_thread import on_worker_thread

#: The command that raises a limit, by the error that reaching the limit gives.
_LIMITS = {errno.EMFILE: 'ulimit -n', errno.ENFILE: 'sysctl fs.file-max'}
_LOOK_EVERY_S = 0.02
#: Attempts on a worker thread, and on the training thread.
_LOOKS, _FEW_LOOKS = 100, 10

_Result = TypeVar('_Result')


def is_out_of_descriptors(error: BaseException) -> bool:
    """True if ``error`` says that this process, or the machine, can open no further file."""
    return isinstance(error, OSError) and error.errno in _LIMITS


def explained(error: BaseException) -> str:
    """The text of ``error``, with the limit to raise if descriptors ran out."""
    limit = _LIMITS.get(error.errno or 0) if isinstance(error, OSError) else None
    return f'{error}. Raise the limit of open files: {limit}' if limit else str(error)


def retry_if_out_of_descriptors(work: Callable[[], _Result]) -> _Result:
    """Run ``work``, and again while descriptors are out: for two seconds on a worker thread, 0.2 on the training thread.

    Args:
        work (Callable): opens its file before it does anything that must not be done twice.
    """
    for _ in range(_LOOKS if on_worker_thread() else _FEW_LOOKS):
        try:
            return work()
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise
        time.sleep(_LOOK_EVERY_S)
    return work()
