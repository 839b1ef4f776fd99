"""How much this process may upload at once: its share of what a node may.

Each of a node's ranks has an equal share. That needs no communication between them.
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

#: Of a node: a number of bytes per second, such as ``200MB``. Not set: no limit.
VARIABLE = 'COMPOSER_MEMPROF_UPLOAD_LIMIT'
_FILES_OF_NODE, _FILES_OF_PROCESS = 16, 4
#: A store that is slower than this has failed, in bytes per second; and what an attempt may take besides, in seconds.
_SLOWEST, _PATIENCE_S = 1 << 20, 60.0
#: How much of a file is sent in one part. In memory there are two of them.
_PART = 8 << 20
#: What S3 takes as a part.
_SMALLEST_PART = 5 << 20
_UNITS = {'': 1, 'k': 10**3, 'm': 10**6, 'g': 10**9, 'ki': 2**10, 'mi': 2**20, 'gi': 2**30}


def ranks_of_node() -> int:
    """How many ranks share this node, as the launcher says."""
    given = os.environ.get('LOCAL_WORLD_SIZE', '')
    return max(1, int(given)) if given.isdigit() else 1


def files_at_once() -> int:
    """How many files this process uploads at once."""
    return max(1, min(_FILES_OF_PROCESS, _FILES_OF_NODE // ranks_of_node()))


def bytes_per_second() -> Optional[float]:
    """This process's share of the node's limit; None without a limit.

    >>> os.environ[VARIABLE] = '1.5 MB'
    >>> bytes_per_second()
    1500000.0
    >>> del os.environ[VARIABLE]

    Raises:
        ValueError: if the environment has something else than a number of bytes.
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
    """Keeps what is uploaded below a rate: one file at a time, with a pause after each part.

    Args:
        rate (float, optional): in bytes per second; None for no limit.
    """

    def __init__(self, rate: Optional[float]) -> None:
        self._rate = rate
        self._turn = threading.Lock()
        self._free_at = 0.0
        #: How many bytes to send before the next pause.
        self.part_size = _PART if rate is None else int(min(_PART, max(_SMALLEST_PART, rate)))
        #: How many parts of a file to send at once.
        self.parts_at_once = 2 if rate is None else 1

    def seconds_for(self, size: int) -> float:
        """The longest that one attempt to send ``size`` bytes may take."""
        return _PATIENCE_S + size / min(_SLOWEST, self._rate or _SLOWEST)

    def turn(self) -> contextlib.AbstractContextManager[object]:
        """In a ``with`` statement: where there is a limit, wait until no other file is being sent."""
        return contextlib.nullcontext() if self._rate is None else self._turn

    def pause_after(self, sent: int) -> None:
        """Wait until ``sent`` further bytes are within the rate."""
        if self._rate is None or not sent:
            return
        now = time.monotonic()
        self._free_at = max(now, self._free_at) + sent / self._rate
        time.sleep(self._free_at - now)


class SentBytes(Callback):
    """Told by fsspec how many bytes of a file are sent; pauses after each part.

    Args:
        throttle (Throttle): says how long.
    """

    def __init__(self, throttle: Throttle) -> None:
        super().__init__()
        self._throttle = throttle
        self._before = 0

    def call(self, hook_name: Optional[str] = None, **kwargs: object) -> None:
        """Called by fsspec when :attr:`value`, the count of bytes, has changed."""
        sent, self._before = self.value - self._before, self.value
        self._throttle.pause_after(sent)


#: Of this process.
_throttles: dict[Optional[float], Throttle] = {}


def throttle_of_process() -> Throttle:
    """The throttle that all uploads of this process share.

    Raises:
        ValueError: see :func:`bytes_per_second`.
    """
    rate = bytes_per_second()
    return _throttles.setdefault(rate, Throttle(rate))
