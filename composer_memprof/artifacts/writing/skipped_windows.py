"""Counts the windows that were not recorded, or not written, for one warning."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from composer_memprof.artifacts.writing.child.memory import NO_MEMORY
from composer_memprof.messages import warn

#: The reason for a skipped window if too many others wait.
NO_ROOM = 'earlier windows were still being written'
#: Advice for a reason, by the beginning of the reason.
_ADVICE = {
    NO_ROOM: " Leave more time between windows, or set on_full='wait': the training then waits until there is room",
    NO_MEMORY: ' Give the job more memory, or record less',
}


@dataclass
class _Reasons:
    """The count of skipped windows of a kind, and the newest of the reasons that begin alike: figures in them differ."""

    count: int = 0
    newest: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str) -> None:
        self.count += 1
        self.newest[reason.partition(':')[0]] = reason


class SkippedWindows:
    """Counts the windows that one store accepted and skipped, by the kind of their main files."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()
        self._reasons: defaultdict[str, _Reasons] = defaultdict(_Reasons)

    def count_taken(self, kind: str) -> None:
        """Count an accepted window, or a file that grows."""
        with self._lock:
            self._taken[kind] += 1

    def add(self, kind: str, reason: str, *, was_taken: bool = False) -> None:
        """Count a skipped window. ``was_taken``: it had been accepted before, perhaps before the last warning."""
        with self._lock:
            self._taken[kind] -= was_taken
            self._reasons[kind].add(reason)

    def warn(self) -> None:
        """Warn of the windows skipped since the last call."""
        with self._lock:
            skipped, self._reasons = self._reasons, defaultdict(_Reasons)
            taken, self._taken = self._taken, Counter()
        for kind, reasons in skipped.items():
            advice = next((_ADVICE[beginning] for beginning in reasons.newest if beginning in _ADVICE), '')
            warn(
                f'{kind}: {reasons.count} of {reasons.count + max(taken[kind], 0)} were left out, because '
                f'{"; ".join(reasons.newest.values())}. The manifest lists each as skipped.{advice}'
            )
