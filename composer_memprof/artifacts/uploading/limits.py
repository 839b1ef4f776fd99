"""Limits of a process's uploads: its share of the limits of a node.

All ranks of a node have equal shares, which need no communication between ranks.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from typing import Optional

from fsspec.callbacks import Callback

from composer_memprof.messages import must_be

#: The environment variable with a node's limit in bytes per second, such as ``200MB``. Not set: no limit.
VARIABLE = 'COMPOSER_MEMPROF_UPLOAD_LIMIT'
_FILES_OF_NODE, _FILES_OF_PROCESS = 16, 4
#: An attempt has failed if it is slower than this in bytes per second, after these seconds of patience.
_SLOWEST, _PATIENCE_S = 1 << 20, 60.0
#: Bytes of one part of a file. Two parts are in memory at once.
_PART = 8 << 20
#: The smallest part in bytes that S3 accepts.
_SMALLEST_PART = 5 << 20
_UNITS = {'': 1, 'k': 10**3, 'm': 10**6, 'g': 10**9, 'ki': 2**10, 'mi': 2**20, 'gi': 2**30}


def ranks_of_node() -> int:
    """The number of ranks on this node, as the launcher says."""
    given = os.environ.get('LOCAL_WORLD_SIZE', '')
    return max(1, int(given)) if given.isdigit() else 1


def files_at_once() -> int:
    """The number of files that this process uploads at once."""
    return max(1, min(_FILES_OF_PROCESS, _FILES_OF_NODE // ranks_of_node()))


def bytes_per_second() -> Optional[float]:
    """This process's share of the node's limit; None without a limit.

    >>> os.environ[VARIABLE] = '1.5 MB'
    >>> bytes_per_second()
    1500000.0
    >>> del os.environ[VARIABLE]

    Raises:
        ValueError: if the environment variable is not a number of bytes.
    """
    given = os.environ.get(VARIABLE, '').strip()
    if not given:
        return None
    match = re.fullmatch(r'(\d+(?:\.\d+)?)\s*([kmg]i?)?b?(?:/s)?', given.lower())
    limit = float(match.group(1)) * _UNITS[match.group(2) or ''] if match else 0.0
    if limit <= 0:
        raise must_be(VARIABLE, 'bytes per second for the node, such as 200MB', given)
    return limit / ranks_of_node()


class Throttle:
    """Keeps uploads below a rate: one file at a time, with a pause after each part.

    Args:
        rate (float, optional): in bytes per second; None for no limit.
    """

    def __init__(self, rate: Optional[float]) -> None:
        self._rate = rate
        self._turn = threading.Lock()
        self._free_at = 0.0
        #: Bytes to send before the next pause.
        self.part_size = _PART if rate is None else int(min(_PART, max(_SMALLEST_PART, rate)))
        #: Number of parts of a file to send at once.
        self.parts_at_once = 2 if rate is None else 1

    def seconds_for(self, size: int) -> float:
        """The longest that one attempt to send ``size`` bytes may take."""
        return _PATIENCE_S + size / min(_SLOWEST, self._rate or _SLOWEST)

    def turn(self) -> contextlib.AbstractContextManager[object]:
        """A context in which, under a limit, no other file is sent."""
        return contextlib.nullcontext() if self._rate is None else self._turn

    def pause_after(self, sent: int) -> None:
        """Wait until ``sent`` further bytes are within the rate."""
        if self._rate is None or not sent:
            return
        now = time.monotonic()
        self._free_at = max(now, self._free_at) + sent / self._rate
        time.sleep(self._free_at - now)


class SentBytes(Callback):
    """A callback of fsspec that counts the bytes sent of a file, and pauses after each part.

    Args:
        throttle (Throttle): decides how long.
    """

    def __init__(self, throttle: Throttle) -> None:
        super().__init__()
        self._throttle = throttle
        self._before = 0

    def call(self, hook_name: Optional[str] = None, **kwargs: object) -> None:
        """Called by fsspec when :attr:`value`, the count of bytes, has changed."""
        sent, self._before = self.value - self._before, self.value
        self._throttle.pause_after(sent)


#: The throttles of this process by their rates.
_throttles: dict[Optional[float], Throttle] = {}


def throttle_of_process() -> Throttle:
    """The throttle that all uploads of this process share.

    Raises:
        ValueError: see :func:`bytes_per_second`.
    """
    rate = bytes_per_second()
    return _throttles.setdefault(rate, Throttle(rate))
