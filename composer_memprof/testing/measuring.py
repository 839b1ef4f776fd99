"""Measures blocks of a test on a GPU: peaks, and which lines of code fill them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from composer_memprof.analysis.memory.findings.attribution import PlaceShare
from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import read_snapshot
from composer_memprof.messages import human_bytes, printable
from composer_memprof.recorders.allocations.allocator_history import AllocatorHistory, notes_of_devices
from composer_memprof.recorders.allocations.notes import with_notes
from composer_memprof.report.text.places import library_frame_text
from composer_memprof.testing.used_memory import Size, UsedMemory
from composer_memprof.vocabulary import CATEGORY_LABELS

_MAX_ENTRIES = 1_000_000
#: Most places that a message names.
_PLACES = 5


def has_gpu() -> bool:
    return torch.cuda.is_available()


class Recording:
    """Records who allocates from the start of a test on, so that what a block finds allocated is known too."""

    def __init__(self) -> None:
        self._history = AllocatorHistory(_MAX_ENTRIES)

    def __enter__(self) -> Recording:
        torch.cuda.init()
        self._history.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._history.cancel()

    @contextlib.contextmanager
    def measure(self) -> Iterator[UsedMemory]:
        """What the block uses of the current device; it is known when the block ends, by an exception too."""
        used = UsedMemory()
        device = torch.cuda.current_device()
        torch.cuda.reset_peak_memory_stats(device)
        self._history.cancel()
        self._history.start()  # events of the block alone; what is allocated stays known
        before = torch.cuda.memory_allocated(device)
        try:
            yield used
        finally:
            torch.cuda.synchronize(device)
            used.peak = Size(torch.cuda.max_memory_allocated(device))
            used.reserved = Size(torch.cuda.max_memory_reserved(device))
            used.left = torch.cuda.memory_allocated(device) - before
            used.peak.filled_by = used.reserved.filled_by = tuple(self._holders(device))

    def _holders(self, device: int) -> Iterator[str]:
        report = report_on(read_snapshot(with_notes(self._history.take(), notes_of_devices())))
        peak = next((each.peak for each in report.devices if each.device == device), None)
        for place in [] if peak is None else peak.holders[:_PLACES]:
            yield printable(_in_words(place))


def _in_words(place: PlaceShare) -> str:
    at = ' < '.join(frame.short() for frame in place.frames[:2]) or 'a call without a stack'
    within = '' if place.within is None else f' {library_frame_text(place.within)}'
    return f'{human_bytes(place.bytes)} by {at}{within} ({CATEGORY_LABELS.get(place.category, place.category)})'
