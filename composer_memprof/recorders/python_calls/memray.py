"""Host allocations with their stacks, by memray, into its own capture file; and what can be read from that.

with MemrayRecorder(Path('batch.bin')) as recorder:
    train_one_batch()
write_flame_graph(recorder.path, Path('batch.html'))

There is one memray tracker a process. It goes by Python's profile hook, as everything does that follows calls.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from composer_memprof.recorders.python_calls.optional_import import check_names, import_optional

#: Arguments of ``memray.Tracker`` that say whereto, which is the recorder's to say.
_NOT_PASSED = ('file_name', 'destination')


def tracker_arguments() -> tuple[str, ...]:
    """The arguments of :class:`memray.Tracker` that are passed through to it.

    It is a compiled class without a signature; its documentation lists them.
    """
    listed = re.findall(r'^ +(\w+) \(', import_optional('memray').Tracker.__doc__ or '', re.MULTILINE)
    return tuple(name for name in listed if name not in _NOT_PASSED)


def check_tracker_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for :class:`memray.Tracker`, from Python or from YAML; ``file_format`` may be a word.

    Raises:
        ValueError: where memray is missing; naming an argument that is not allowed, and what is.
    """
    memray = import_optional('memray')
    checked = dict(arguments)
    check_names(checked, tracker_arguments(), 'memray.Tracker')
    for name in checked:
        if name not in ('memory_interval_ms', 'file_format') and not isinstance(checked[name], bool):
            raise ValueError(f'{name}={checked[name]!r} is not allowed; it is true or false')
    if 'file_format' in checked:
        checked['file_format'] = _file_format(checked['file_format'])
    for name, value in checked.items():
        try:
            memray.Tracker(destination=memray.FileDestination('/dev/null', overwrite=True), **{name: value})
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise ValueError(f'{name}={value!r} is not allowed; {error}') from error
    return checked


def _file_format(value: Any) -> Any:
    formats = import_optional('memray').FileFormat.__members__
    if value in formats.values():
        return value
    if str(value).upper() not in formats:
        raise ValueError(f'file_format={value!r} is unknown; allowed are {", ".join(formats).lower()}')
    return formats[str(value).upper()]


class MemrayRecorder:
    """Records with :class:`memray.Tracker`; as a context manager, or by ``start`` and ``stop``.

    The capture grows as it is written, in place: after a kill, memray reads it as far as it came. It is not compressed
    at the end, which would hold up whoever stops.

    Args:
        path (Path): of the capture; replaced, where it exists. ``follow_fork`` puts each child's beside it, with the
            child's process id as a further suffix.
        arguments: of :class:`memray.Tracker`.
    """

    def __init__(self, path: Path, **arguments: Any) -> None:
        self.path = path
        self._arguments = arguments
        self._tracker: Any = None

    def start(self) -> None:
        memray = import_optional('memray')
        to = memray.FileDestination(self.path, overwrite=True, compress_on_exit=False)
        tracker = memray.Tracker(destination=to, **self._arguments)
        # memray's reports cut as many frames off each stack of the thread that starts it as lie above the start: from
        # within a callback, most of the model's. On a thread of its own that is nobody's loss.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(tracker.__enter__).result()
        self._tracker = tracker

    def stop(self) -> None:
        """End the recording, where one is on."""
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.__exit__(None, None, None)

    def __enter__(self) -> MemrayRecorder:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def write_flame_graph(capture: Path, path: Path, *, leaks: bool = False) -> None:
    """Write memray's own page, which loads nothing from elsewhere: who held memory at its peak.

    Args:
        capture (Path): what was recorded.
        path (Path): of the page.
        leaks (bool): in place of that, who allocated what was not freed by the end.
    """
    import_optional('memray')
    from memray.reporters.flamegraph import FlameGraphReporter

    with _reader(capture) as reader:
        reporter = FlameGraphReporter.from_snapshot(
            _records(reader, leaks),
            memory_records=tuple(reader.get_memory_snapshots()),
            native_traces=reader.metadata.has_native_traces,
        )
        with open(path, 'w', encoding='utf-8') as out:
            reporter.render(
                out,
                metadata=reader.metadata,
                show_memory_leaks=leaks,
                merge_threads=True,
                inverted=False,
                no_web=True,
            )


def _reader(capture: Path) -> Any:
    return import_optional('memray').FileReader(capture)


def _records(reader: Any, leaks: bool) -> Iterable[Any]:
    if leaks:
        return reader.get_leaked_allocation_records(merge_threads=True)
    return reader.get_high_watermark_allocation_records(merge_threads=True)


@dataclass(frozen=True)
class FunctionAllocations:
    """Where memory was allocated: the innermost Python function, and what of it."""

    function: str
    file: str
    line: int
    bytes: int
    allocations: int


@dataclass(frozen=True)
class MemrayStatistics:
    """A capture in figures, in bytes.

    Args:
        allocations (int): how many were made.
        allocated_bytes (int, optional): what they add up to; None of an aggregated capture, which does not tell.
        peak_bytes (int): the most that was held at one time, of what was allocated while recording.
        left_bytes (int): what of it was still held at the end.
        seconds (float): how long was recorded.
        native_traces (bool): whether native stacks were.
        allocators (Mapping[str, int], optional): how many allocations each allocator made; None likewise.
        at_peak (list[FunctionAllocations]): who held most at the peak.
        left (list[FunctionAllocations]): who allocated most of what was left.
    """

    allocations: int
    allocated_bytes: Optional[int]
    peak_bytes: int
    left_bytes: int
    seconds: float
    native_traces: bool
    allocators: Optional[Mapping[str, int]]
    at_peak: list[FunctionAllocations]
    left: list[FunctionAllocations]


def read_statistics(capture: Path, most: int = 50) -> MemrayStatistics:
    """The figures of a capture, with up to ``most`` places of each kind."""
    memray = import_optional('memray')
    with _reader(capture) as reader:
        metadata = reader.metadata
        held = _places(_records(reader, leaks=False))
    with _reader(capture) as reader:
        left = _places(_records(reader, leaks=True))
    whole: Any = None
    if metadata.file_format == memray.FileFormat.ALL_ALLOCATIONS:
        from memray._memray import compute_statistics  # of `memray stats`; there is no other way to it

        whole = compute_statistics(str(capture))
    return MemrayStatistics(
        allocations=metadata.total_allocations if whole is None else whole.total_num_allocations,
        allocated_bytes=None if whole is None else whole.total_memory_allocated,
        peak_bytes=metadata.peak_memory,
        left_bytes=sum(place.bytes for place in left),
        seconds=(metadata.end_time - metadata.start_time).total_seconds(),
        native_traces=metadata.has_native_traces,
        allocators=None if whole is None else dict(whole.allocation_count_by_allocator),
        at_peak=held[:most],
        left=left[:most],
    )


def _places(records: Iterable[Any]) -> list[FunctionAllocations]:
    """Allocations by the innermost Python function that made them, the largest first."""
    sizes: Counter[tuple[str, str, int]] = Counter()
    counts: Counter[tuple[str, str, int]] = Counter()
    for record in records:
        stack = record.stack_trace(max_stacks=1)
        place = stack[0] if stack else ('(no Python function)', '', 0)
        sizes[place] += record.size
        counts[place] += record.n_allocations
    return [FunctionAllocations(*place, size, counts[place]) for place, size in sizes.most_common()]
