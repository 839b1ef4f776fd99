"""Counts the windows that were not recorded, or not written, for one warning."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from composer_memprof.artifacts.writing.child.memory import NO_MEMORY
from composer_memprof.messages import warn

#: The reason where too many windows wait.
NO_ROOM = 'earlier windows were still being written'
#: What to do about a reason, by its beginning.
_ADVICE = {
    NO_ROOM: " Leave more time between windows, or set on_full='wait': the training then waits until there is room",
    NO_MEMORY: ' Give the job more memory, or record less',
}


@dataclass
class _Reasons:
    """How many windows of a kind were left out, and why: the newest reason by its beginning, as figures in it differ."""

    count: int = 0
    newest: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str) -> None:
        self.count += 1
        self.newest[reason.partition(':')[0]] = reason


class SkippedWindows:
    """Counts what one store took and what it left out, by the kind of a window's main file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()
        self._reasons: defaultdict[str, _Reasons] = defaultdict(_Reasons)

    def count_taken(self, kind: str) -> None:
        """A window, or a file of its own, was handed over."""
        with self._lock:
            self._taken[kind] += 1

    def add(self, kind: str, reason: str, *, was_taken: bool = False) -> None:
        """A window is left out. ``was_taken``: although it had been counted before, maybe before the last warning."""
        with self._lock:
            self._taken[kind] -= was_taken
            self._reasons[kind].add(reason)

    def warn(self) -> None:
        """Warn of what was left out since the last call."""
        with self._lock:
            skipped, self._reasons = self._reasons, defaultdict(_Reasons)
            taken, self._taken = self._taken, Counter()
        for kind, reasons in skipped.items():
            advice = next((_ADVICE[beginning] for beginning in reasons.newest if beginning in _ADVICE), '')
            warn(
                f'{kind}: {reasons.count} of {reasons.count + max(taken[kind], 0)} were left out, because '
                f'{"; ".join(reasons.newest.values())}. The manifest lists each as skipped.{advice}'
            )
