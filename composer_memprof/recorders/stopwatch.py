"""The time of batches, one after another."""

from __future__ import annotations

import time
from typing import Optional


class Stopwatch:
    """Times each batch with what lies between it and the one before, until it pauses."""

    def __init__(self) -> None:
        self._since: Optional[float] = None

    def begin(self) -> None:
        """A batch begins; it counts from the end of the last one, unless there was a pause."""
        if self._since is None:
            self._since = time.perf_counter()

    def end(self) -> Optional[float]:
        """A batch has ended: its seconds, or None where it was not timed. From here on it counts for the next."""
        since, self._since = self._since, time.perf_counter()
        return None if since is None else self._since - since

    def pause(self) -> None:
        self._since = None
