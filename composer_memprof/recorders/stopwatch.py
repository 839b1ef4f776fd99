"""Times batches."""

from __future__ import annotations

import time
from typing import Optional


class Stopwatch:
    """Times each batch from the end of the previous one, so that nothing between them is left out."""

    def __init__(self) -> None:
        self._since: Optional[float] = None

    def begin(self) -> None:
        """A batch begins. Starts the stopwatch if it is paused."""
        if self._since is None:
            self._since = time.perf_counter()

    def end(self) -> Optional[float]:
        """A batch ended. Returns its seconds, or None if it was not timed; the next batch's time starts now."""
        since, self._since = self._since, time.perf_counter()
        return None if since is None else self._since - since

    def pause(self) -> None:
        """Do not count the time until the next :meth:`begin`."""
        self._since = None
