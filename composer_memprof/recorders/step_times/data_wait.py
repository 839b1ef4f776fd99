"""How long this process waits for its own DataLoader, whatever other ranks do.

Composer synchronizes all ranks between the DataLoader and the event that follows it, so events alone give every rank
the time of the slowest.
"""

from __future__ import annotations

import threading
from typing import Optional

from composer_memprof.recorders.torch_private import data_loading

#: The modules of ``torch_private`` that this needs.
NEEDS = (data_loading,)


class DataWait:
    """Times the ``next`` of torch's DataLoaders on the thread that made it, from :meth:`start` to :meth:`stop`."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._seconds: Optional[float] = None
        self._is_on = False

    def start(self) -> None:
        """Begin to time."""
        if not self._is_on:
            self._is_on = True
            data_loading.add_listener(self._listen)

    def stop(self) -> None:
        """End; torch's DataLoader is as it was."""
        if self._is_on:
            self._is_on = False
            data_loading.remove_listener(self._listen)

    def take(self) -> Optional[float]:
        """Seconds of the last ``next`` since the last call; None if there was none."""
        seconds, self._seconds = self._seconds, None
        return seconds

    def _listen(self, seconds: float) -> None:
        if threading.get_ident() == self._thread:
            self._seconds = seconds
