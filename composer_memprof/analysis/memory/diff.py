"""Changes between two snapshots or two runs: the peak of each device, by category and by place in the code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from composer_memprof.analysis.memory.snapshot_report import DeviceReport, SnapshotReport, ignored_events, report_on
from composer_memprof.analysis.run import snapshots_by_rank
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.analysis.snapshot.model import Frame
from composer_memprof.messages import printable


@dataclass(frozen=True)
class CategoryChange:
    """Bytes of a category at both peaks."""

    category: str
    before: int
    after: int

    @property
    def bytes(self) -> int:
        return self.after - self.before


@dataclass(frozen=True)
class PlaceChange:
    """Bytes and blocks of one category of a place in the code, at both peaks."""

    category: str
    before: int
    after: int
    blocks_before: int
    blocks_after: int
    frames: list[Frame]
    folded: int
    within: Optional[Frame] = None

    @property
    def bytes(self) -> int:
        return self.after - self.before


@dataclass(frozen=True)
class DeviceDiff:
    """Two peaks of one device, in bytes.

    Args:
        rank (int, optional): None if files were compared.
        device (int): its index.
        before (int): allocated at the first peak.
        after (int): allocated at the second peak.
        reserved_before (int, optional): the most that was reserved; None if not known.
        reserved_after (int, optional): likewise.
        categories (list[CategoryChange]): largest change first; their changes add up to that of the peak.
        places (list[PlaceChange]): likewise.
    """

    rank: Optional[int]
    device: int
    before: int
    after: int
    reserved_before: Optional[int]
    reserved_after: Optional[int]
    categories: list[CategoryChange]
    places: list[PlaceChange]


@dataclass(frozen=True)
class Diff:
    """The compared files, the changes of each device, and notes on what could not be compared."""

    before: list[str]
    after: list[str]
    devices: list[DeviceDiff]
    notes: list[str]


def diff(before: Path, after: Path, limit_memory: bool = False) -> Diff:
    """Compare two snapshots, or of two runs each rank's snapshot of a failure, else its newest.

    Args:
        before (Path): a snapshot, or a run's folder.
        after (Path): another.
        limit_memory (bool): as in :func:`~composer_memprof.analysis.snapshot.loading.load_snapshot`.

    Raises:
        SnapshotError: if a file is not a snapshot, or a run has none.
        OSError: if a file can't be read.
    """
    left, right = snapshots_by_rank(before), snapshots_by_rank(after)
    notes = []
    if None in left or None in right:
        left, right = _first_rank(left), _first_rank(right)
    for paths, others, where in ((left, right, before), (right, left, after)):
        alone = [str(rank) for rank in paths if rank not in others]
        if alone:
            notes.append(f'Only {where} has rank {", ".join(alone)}.')
    devices = []
    for rank in [rank for rank in left if rank in right]:
        reports = []
        for path in (left[rank], right[rank]):
            snapshot = load_snapshot(path, limit_memory)
            reports.append(report_on(snapshot))
            notes += [f'{printable(str(path))}: {note}' for note in ignored_events(snapshot)]
        found, more = diff_of(reports[0], reports[1], rank=rank)
        devices += found
        notes += more
    return Diff([str(path) for path in left.values()], [str(path) for path in right.values()], devices, notes)


def _first_rank(paths: dict[int | None, Path]) -> dict[int | None, Path]:
    """A single file is compared with the first rank of a run."""
    return {None: next(iter(paths.values()))}


def diff_of(
    before: SnapshotReport, after: SnapshotReport, rank: Optional[int] = None
) -> tuple[list[DeviceDiff], list[str]]:
    """The changes of each device that both have, and a note for each device that only one has."""
    left = {device.device: device for device in before.devices}
    right = {device.device: device for device in after.devices}
    notes = [
        f'Device {number} is only in the {"first" if number in left else "second"} snapshot.'
        for number in sorted(left.keys() ^ right.keys())
    ]
    both = sorted(left.keys() & right.keys())
    return [_device(rank, left[number], right[number]) for number in both], notes


def _device(rank: Optional[int], before: DeviceReport, after: DeviceReport) -> DeviceDiff:
    categories: dict[str, list[int]] = {}
    places: dict[tuple[str, tuple[Frame, ...], Optional[Frame]], list[int]] = {}
    folded: dict[tuple[Frame, ...], int] = {}
    for side, peak in enumerate((before.peak, after.peak)):
        for share in peak.categories:
            categories.setdefault(share.category, [0, 0])[side] += share.bytes
        for place in peak.holders:
            frames = tuple(place.frames)
            sums = places.setdefault((place.category, frames, place.within), [0, 0, 0, 0])
            sums[side] += place.bytes
            sums[side + 2] += place.blocks
            folded[frames] = place.folded
    return DeviceDiff(
        rank=rank,
        device=before.device,
        before=before.peak.bytes,
        after=after.peak.bytes,
        reserved_before=before.reserved_peak,
        reserved_after=after.reserved_peak,
        categories=sorted(
            (CategoryChange(name, *sums) for name, sums in categories.items()),
            key=lambda change: -abs(change.bytes),
        ),
        places=sorted(
            (
                PlaceChange(name, sums[0], sums[1], sums[2], sums[3], list(frames), folded[frames], within)
                for (name, frames, within), sums in places.items()
            ),
            key=lambda change: -abs(change.bytes),
        ),
    )
