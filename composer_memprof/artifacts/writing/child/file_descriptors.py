"""What to do where this process, or the machine, has no file left to open: others soon close theirs."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from composer_memprof.artifacts.writing.worker_thread import on_worker_thread

#: How to raise the limit, by the error that it gives.
_LIMITS = {errno.EMFILE: 'ulimit -n', errno.ENFILE: 'sysctl fs.file-max'}
_LOOK_EVERY_S = 0.02
#: How often to look again on a worker thread, and where it holds up the training.
_LOOKS, _FEW_LOOKS = 100, 10

_Result = TypeVar('_Result')


def is_out_of_descriptors(error: BaseException) -> bool:
    """Whether ``error`` says that no file can be opened now."""
    return isinstance(error, OSError) and error.errno in _LIMITS


def explained(error: BaseException) -> str:
    """The error, and which limit to raise if no file was left to open."""
    limit = _LIMITS.get(error.errno or 0) if isinstance(error, OSError) else None
    return f'{error}. Raise the limit of open files: {limit}' if limit else str(error)


def retry_if_out_of_descriptors(work: Callable[[], _Result]) -> _Result:
    """Run ``work``, and again while it finds no file left to open. A worker thread waits two seconds, the training 0.2.

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
