"""The phase in which a loop loads data, found by torch's DataLoader itself."""

from __future__ import annotations

import threading
from collections.abc import Callable

from composer_memprof.recorders.torch_private import data_loading, missing


class DataPhases:
    """Tells when the ``next`` of a DataLoader begins and ends, on the thread that made this.

    Args:
        begin (Callable): is told that it begins.
        end (Callable): is told that it ends.
    """

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._begin, self._end = begin, end
        self._thread = threading.get_ident()
        #: Loaders that wait for each other: one may read another.
        self._depth = 0

    def follow(self) -> None:
        if not missing(data_loading):
            data_loading.add_listener(self._ends, self._begins)

    def leave(self) -> None:
        """Listen no more."""
        data_loading.remove_listener(self._ends, self._begins)

    def _begins(self) -> None:
        if threading.get_ident() == self._thread:
            self._depth += 1
            if self._depth == 1:
                self._begin()

    def _ends(self, seconds: float) -> None:
        del seconds  # unused
        if threading.get_ident() == self._thread and self._depth:
            self._depth -= 1
            if not self._depth:
                self._end()
