"""Changes between two snapshots or two runs: the peak of each device, by category and by place in the code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from composer_memprof.analysis.memory.findings.same_places import pair_places
from composer_memprof.analysis.memory.snapshot_report import DeviceReport, SnapshotReport, ignored_events, report_on
from composer_memprof.analysis.run import rank_list, snapshots_by_rank
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.analysis.snapshot.model import Frame
from composer_memprof.messages import printable


@dataclass(frozen=True)
class CategoryChange:
    """Bytes of a category at both peaks, and the most that it had at any time in each recording."""

    category: str
    before: int
    after: int
    most_before: int = 0
    most_after: int = 0

    @property
    def bytes(self) -> int:
        return self.after - self.before

    @property
    def most(self) -> int:
        """Change of the most that it had."""
        return self.most_after - self.most_before


@dataclass(frozen=True)
class PlaceChange:
    """Bytes and blocks of one category of a place in the code, at both peaks. Its lines are those of the second."""

    category: str
    before: int
    after: int
    blocks_before: int
    blocks_after: int
    frames: list[Frame]
    folded: int
    within: Optional[Frame] = None
    module: str = ''

    @property
    def bytes(self) -> int:
        return self.after - self.before


@dataclass(frozen=True)
class DeviceDiff:
    """Two peaks of one device, in bytes.

    Args:
        rank (int, optional): None if files were compared.
        device (int): its index, in the first snapshot.
        before (int): allocated at the first peak.
        after (int): allocated at the second peak.
        reserved_before (int, optional): the most that was reserved; None if not known.
        reserved_after (int, optional): likewise.
        categories (list[CategoryChange]): largest change first; their changes add up to that of the peak.
        places (list[PlaceChange]): likewise.
        device_after (int): its index in the second snapshot.
    """

    rank: Optional[int]
    device: int
    before: int
    after: int
    reserved_before: Optional[int]
    reserved_after: Optional[int]
    categories: list[CategoryChange]
    places: list[PlaceChange]
    device_after: int


@dataclass(frozen=True)
class Diff:
    """The compared files, the changes of each device, and notes on what could not be compared."""

    before: list[str]
    after: list[str]
    devices: list[DeviceDiff]
    notes: list[str]


def diff(before: Path, after: Path, limit_memory: bool = False) -> Diff:
    """Compare two snapshots, or of two runs each rank's snapshot of a failure, else its newest.

    A snapshot is compared with that of its rank in a run, if the run has one, else with that of the run's first rank.

    Args:
        before (Path): a snapshot, or a run's folder.
        after (Path): another.
        limit_memory (bool): as in :func:`~composer_memprof.analysis.snapshot.loading.load_snapshot`.

    Raises:
        SnapshotError: if a file is not a snapshot, or a run has none.
        OSError: if a file can't be read.
    """
    left, right = snapshots_by_rank(before), snapshots_by_rank(after)
    if (None in left) != (None in right):
        file = left.get(None) or right[None]
        rank = load_snapshot(file, limit_memory).meta.rank
        left, right = _of_rank(left, rank), _of_rank(right, rank)
    both = [rank for rank in left if rank in right]
    devices, notes = [], list(_alone(left, right, before, after))
    for rank in both:
        reports = []
        for path in (left[rank], right[rank]):
            snapshot = load_snapshot(path, limit_memory)
            reports.append(report_on(snapshot))
            notes += [f'{printable(str(path))}: {note}' for note in ignored_events(snapshot)]
        found, more = diff_of(reports[0], reports[1], rank=rank)
        devices += found
        notes += more
    if both and not devices and not notes:
        notes.append('Nothing could be compared: no allocation was recorded in either.')
    return Diff([str(path) for path in left.values()], [str(path) for path in right.values()], devices, notes)


def _of_rank(paths: dict[Optional[int], Path], rank: Optional[int]) -> dict[Optional[int], Path]:
    """The snapshot of a rank, else of the first one, as a single file."""
    return {None: paths.get(rank) or next(iter(paths.values()))}


def _alone(
    left: dict[Optional[int], Path], right: dict[Optional[int], Path], before: Path, after: Path
) -> Iterator[str]:
    """Sentences about the ranks that only one run has."""
    mine, others = ([rank for rank in paths if rank is not None] for paths in (left, right))
    if left.keys().isdisjoint(right):
        yield (
            f'Nothing could be compared: {before} has a snapshot of rank {rank_list(mine)}, {after} of rank '
            f'{rank_list(others)}. Name two snapshots to compare these.'
        )
        return
    for alone, where in ((set(mine) - set(others), before), (set(others) - set(mine), after)):
        if alone:
            yield f'Only {where} has rank {rank_list(alone)}.'


def diff_of(
    before: SnapshotReport, after: SnapshotReport, rank: Optional[int] = None
) -> tuple[list[DeviceDiff], list[str]]:
    """The changes of each device that both have, and a note for each device that only one has.

    Snapshots of one rank are compared by the devices' numbers. A rank has one device: of snapshots of different ranks,
    or of one rank on another device, those with the largest peaks are compared.
    """
    left = {device.device: device for device in before.devices}
    right = {device.device: device for device in after.devices}
    pairs = [(number, number) for number in sorted(left.keys() & right.keys())]
    largest = before.largest_device, after.largest_device
    if largest[0] is not None and largest[1] is not None and (not pairs or before.meta.rank != after.meta.rank):
        pairs = [(largest[0].device, largest[1].device)]
    notes = [
        f'Device {number} is only in the {which} snapshot.'
        for devices, side, which in ((left, 0, 'first'), (right, 1, 'second'))
        for number in sorted(devices.keys() - {pair[side] for pair in pairs})
    ]
    return [_device(rank, left[one], right[other]) for one, other in pairs], notes


def _device(rank: Optional[int], before: DeviceReport, after: DeviceReport) -> DeviceDiff:
    places = [
        PlaceChange(
            category=shown.category,
            before=0 if one is None else one.bytes,
            after=0 if other is None else other.bytes,
            blocks_before=0 if one is None else one.blocks,
            blocks_after=0 if other is None else other.blocks,
            frames=shown.frames,
            folded=shown.folded,
            within=shown.within,
            module=shown.module,
        )
        for one, other in pair_places(before.peak.holders, after.peak.holders)
        for shown in [other or one]
        if shown is not None
    ]
    return DeviceDiff(
        rank=rank,
        device=before.device,
        before=before.peak.bytes,
        after=after.peak.bytes,
        reserved_before=before.reserved_peak,
        reserved_after=after.reserved_peak,
        categories=sorted(_categories(before, after), key=lambda change: (-abs(change.bytes), -abs(change.most))),
        places=sorted(places, key=lambda change: -abs(change.bytes)),
        device_after=after.device,
    )


def _categories(before: DeviceReport, after: DeviceReport) -> list[CategoryChange]:
    at_peak = [{share.category: share.bytes for share in device.peak.categories} for device in (before, after)]
    most = [{peak.category: peak.bytes for peak in device.category_peaks} for device in (before, after)]
    names = dict.fromkeys(name for sizes in (*at_peak, *most) for name in sizes)
    return [CategoryChange(name, *(sizes.get(name, 0) for sizes in (*at_peak, *most))) for name in names]
