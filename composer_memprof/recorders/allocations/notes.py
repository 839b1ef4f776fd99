"""What this package notes in a memory snapshot, beside torch's own keys: one type, one version.

A recorder's side writes it (:meth:`SnapshotNotes.as_dict`); ``analysis.snapshot.notes`` reads it, from files that are
not trusted. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Optional

#: The key in a snapshot under which the notes stand.
KEY = 'composer_memprof'
#: Raised when a key changes its meaning; a reader takes what it knows of a newer one. Snapshots without it are of 1.
VERSION = 1


@dataclass(frozen=True)
class SnapshotNotes:
    """The notes in one snapshot.

    Args:
        device (str): ``cuda`` or ``cpu``.
        torch (str): version of torch.
        recorder (str): ``allocator_history`` or ``profiler``.
        rank (int, optional): global rank.
        phases (Sequence): rows of (time in microseconds since 1970, batch, phase), in order of time.
        tensors (Sequence): rows of (time, address, bytes, category, name).
        modules (Sequence): rows of (time, dotted name of the module that runs from here on).
        error (str, optional): what ended the training, where the snapshot is of that.
        oom (Mapping, optional): what is known of running out: ``device``, ``requested``, ``total``, ``free``,
            ``allocated``, ``reserved`` in bytes, ``message``.
        version (int): of this form.
    """

    device: str
    torch: str
    recorder: str
    rank: Optional[int] = None
    phases: Sequence[Any] = ()
    tensors: Sequence[Any] = ()
    modules: Sequence[Any] = ()
    error: Optional[str] = None
    oom: Optional[Mapping[str, Any]] = None
    version: int = VERSION

    def as_dict(self) -> dict[str, Any]:
        """As it stands in a snapshot: plain values; what is not known is left out."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value is not None
        }
