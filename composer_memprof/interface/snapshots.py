"""``load_snapshot``: a memory snapshot as arrays, and the report on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Optional, Union

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from composer_memprof.analysis.memory.blocks.time_span import TimeSpan
from composer_memprof.analysis.memory.findings.attribution import PlaceShare
from composer_memprof.analysis.memory.findings.peak import Peak
from composer_memprof.analysis.memory.snapshot_report import DeviceReport, SnapshotReport, report_on
from composer_memprof.analysis.run import snapshot_to_show
from composer_memprof.analysis.snapshot.loading import load_snapshot as load_columns
from composer_memprof.analysis.snapshot.model import Snapshot
from composer_memprof.interface.errors import errors_as_one
from composer_memprof.interface.shown import Shown
from composer_memprof.messages import human_bytes, printable
from composer_memprof.report.text.places import library_frame_text
from composer_memprof.report.text.terminal.inspection_json import inspection_dict
from composer_memprof.report.text.terminal.snapshot_tables import report_text
from composer_memprof.schemas import versioned
from composer_memprof.vocabulary import CATEGORY_LABELS

#: Most places and modules of a table.
_MOST = 12


@dataclass(frozen=True)
class LoadedSnapshot(Snapshot):
    """A snapshot's arrays, as :class:`~composer_memprof.analysis.snapshot.model.Snapshot` describes them.

    Attributes:
        path: the file that it was read from.
    """

    path: Path = Path()

    def report(self, from_ms: Optional[float] = None, to_ms: Optional[float] = None) -> ReportedSnapshot:
        """What filled the memory at its peak.

        Args:
            from_ms (float, optional): look for the peak from here on, in ms after the first event. Default: the beginning.
            to_ms (float, optional): and up to here. Default: the end.

        Raises:
            MemprofError: if the span is not within the recording, or the recording has no times.
        """
        with errors_as_one(ValueError):
            span = None if from_ms is None and to_ms is None else TimeSpan(from_ms, to_ms)
            return ReportedSnapshot(report_on(self, span), self.path)


@dataclass(frozen=True)
class ReportedSnapshot(Shown):
    """What filled the memory of a snapshot. Sizes are in bytes.

    ``print`` shows it as ``composer-memprof inspect`` does, a notebook as tables, and :meth:`to_dict` is what ``--json``
    prints.

    Attributes:
        snapshot: every figure, by device.
        path: the file.
    """

    snapshot: SnapshotReport
    path: Path

    @property
    def devices(self) -> list[DeviceReport]:
        """By index."""
        return self.snapshot.devices

    @property
    def peak(self) -> Optional[Peak]:
        """Of the device with the largest one; None if nothing was recorded."""
        largest = self.snapshot.largest_device
        return None if largest is None else largest.peak

    def text(self) -> RenderableType:
        if not self.devices:
            return Text(f'{printable(str(self.path))}: no allocation was recorded')
        return report_text(self.snapshot)

    def tables(self) -> RenderableType:
        if not self.devices:
            return self.text()
        return Group(*(part for device in self.devices for part in _device(device)), *map(Text, self.snapshot.notes))

    def to_dict(self) -> dict[str, Any]:
        """What ``composer-memprof inspect --json`` prints."""
        return versioned('inspect', inspection_dict(self.snapshot, snapshot_to_show(self.path), str(self.path)))


def load_snapshot(path: Union[str, Path], limit_memory: bool = False) -> LoadedSnapshot:
    """Read a memory snapshot as arrays. Nothing in the file is executed, and neither torch nor Composer is needed.

    >>> import pickle
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from composer_memprof import load_snapshot
    >>> event = {'action': 'alloc', 'addr': 4096, 'size': 512, 'time_us': 7}
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / 'rank0.pickle'
    ...     _ = path.write_bytes(pickle.dumps({'device_traces': [[event]], 'segments': []}))
    ...     snapshot = load_snapshot(path)
    >>> [int(device.size.sum()) for device in snapshot.devices], snapshot.report().peak.bytes
    ([512], 512)

    Args:
        path (str | Path): a file of MemorySnapshot, compressed or not, or of torch's ``_dump_snapshot``.
        limit_memory (bool): limit the memory of this process while it reads, all threads included. Otherwise a
            malicious file of a few bytes can use up the machine's memory. Default: ``False``.

    Raises:
        SnapshotError: if the file is not a complete snapshot. It is a :class:`MemprofError`, and a ``ValueError``.
        OSError: if the file can't be read.
    """
    columns = load_columns(path, limit_memory)
    return LoadedSnapshot(**{each.name: getattr(columns, each.name) for each in fields(columns)}, path=Path(path))


def _device(device: DeviceReport) -> Iterator[RenderableType]:
    failed = device.at_failure
    if failed is not None and failed.event != device.peak.event:
        yield from _peak(f'At the failure on device {device.device}', failed)
    yield from _peak(f'Peak of device {device.device}', device.peak)
    if device.reserved_peak is not None:
        yield Text(f'at most {human_bytes(device.reserved_peak)} reserved')


def _peak(title: str, peak: Peak) -> Iterator[RenderableType]:
    when = ''.join(
        f', {each}' for each in (f'batch {peak.batch}' if peak.batch is not None else '', peak.phase) if each
    )
    yield Text(f'{title}: {human_bytes(peak.bytes)} allocated{when}', style='bold')
    yield _table(
        ('category', 'why'),
        [
            (share.bytes, _label(share.category), '; '.join(rule.rule for rule in share.rules))
            for share in peak.categories
        ],
        peak.bytes,
    )
    yield _table(('place in the code', 'category'), [_place(each) for each in peak.holders[:_MOST]], peak.bytes)
    modules = [(each.bytes, each.module or 'none or unknown') for each in peak.module_totals[:_MOST]]
    if modules:
        yield _table(('module, with all inside of it',), modules, peak.bytes)


def _place(place: PlaceShare) -> tuple[Any, ...]:
    within = '' if place.within is None else f' {library_frame_text(place.within)}'
    at = ' < '.join(frame.short() for frame in place.frames[:3]) or 'no stack recorded'
    return place.bytes, f'{at}{within}', _label(place.category)


def _label(category: str) -> str:
    return CATEGORY_LABELS.get(category, category)


def _table(columns: Sequence[str], rows: Sequence[tuple[Any, ...]], whole: int) -> Table:
    table = Table()
    for name in ('size', 'share'):
        table.add_column(name, justify='right')
    for name in columns:
        table.add_column(name)
    for size, *cells in rows:
        table.add_row(human_bytes(size), f'{size / max(whole, 1):.0%}', *cells)
    return table
