"""Records host allocations and their stacks with memray, and reads its capture files.

with MemrayRecorder(Path('batch.bin')) as recorder:
    train_one_batch()
write_flame_graph(recorder.path, Path('batch.html'))

A process can have one memray tracker. It uses Python's profile hook, as all tools do that follow calls.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from composer_memprof.garbage import no_collection
from composer_memprof.messages import check_one_of, check_switches
from composer_memprof.recorders.python_calls.optional_import import check_names, import_optional

#: Arguments of ``memray.Tracker`` that the recorder sets itself.
_SET_BY_RECORDER = ('file_name', 'destination')


def tracker_arguments() -> tuple[str, ...]:
    """The arguments that are passed through to :class:`memray.Tracker`.

    They are read from its docstring, since the class is compiled and has no signature.
    """
    listed = re.findall(r'^ +(\w+) \(', import_optional('memray').Tracker.__doc__ or '', re.MULTILINE)
    return tuple(name for name in listed if name not in _SET_BY_RECORDER)


def check_tracker_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Check arguments for :class:`memray.Tracker`. Returns them, with ``file_format`` as memray's enum.

    Args:
        arguments (Mapping): from Python or YAML; ``file_format`` may be a string.

    Raises:
        ValueError: if memray is not installed, or for an argument that is not allowed.
    """
    memray = import_optional('memray')
    checked = dict(arguments)
    check_names(checked, tracker_arguments(), 'memray.Tracker')
    for name in checked:
        if name not in ('memory_interval_ms', 'file_format'):
            check_switches(**{name: checked[name]})
    if 'file_format' in checked:
        checked['file_format'] = _file_format(checked['file_format'])
    for name, value in checked.items():
        try:
            memray.Tracker(destination=memray.FileDestination('/dev/null', overwrite=True), **{name: value})
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise ValueError(f'memray.Tracker does not accept {name}={value!r}: {error}') from error
    return checked


def _file_format(value: Any) -> Any:
    formats = import_optional('memray').FileFormat.__members__
    if value in formats.values():
        return value
    check_one_of('file_format', str(value).lower(), [name.lower() for name in formats])
    return formats[str(value).upper()]


def import_reports() -> None:
    """Import what the reports need, before a child is forked that writes them.

    Where another thread imports something at the fork, the child would wait for it for ever.
    """
    import_optional('memray.reporters.flamegraph')
    codecs.lookup('unicode_escape')


class MemrayRecorder:
    """Records with :class:`memray.Tracker`, as a context manager or by ``start`` and ``stop``.

    The capture file grows while recording, and memray can read it after a kill. It is not compressed at the end, since
    that would block the caller of ``stop``.

    No garbage is collected while memray starts or stops. memray goes through the frames of all threads, and holds none of
    them. A collection would call ``gc.callbacks``, in which Python may switch to a thread whose frames then end: the
    process dies of SIGSEGV. Seen with memray 1.20.

    Args:
        path (Path): of the capture; an existing file is replaced. With ``follow_fork``, each child writes a file with
            its process id as a further suffix.
        arguments: of :class:`memray.Tracker`.
    """

    def __init__(self, path: Path, **arguments: Any) -> None:
        self.path = path
        self._arguments = arguments
        self._tracker: Any = None

    def start(self) -> None:
        memray = import_optional('memray')
        destination = memray.FileDestination(self.path, overwrite=True, compress_on_exit=False)
        tracker = memray.Tracker(destination=destination, **self._arguments)
        # memray's reports cut off, from stacks of the thread that starts it, as many outer frames as were running at
        # the start. Started by a callback, most of the model's frames would be cut off, so another thread starts it.
        with ThreadPoolExecutor(1) as thread, no_collection():
            thread.submit(tracker.__enter__).result()
        self._tracker = tracker

    def stop(self) -> None:
        """End the recording, if one is running."""
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            with no_collection():
                tracker.__exit__(None, None, None)

    def __enter__(self) -> MemrayRecorder:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def write_flame_graph(capture: Path, path: Path, *, leaks: bool = False) -> None:
    """Write memray's flame graph page, which loads nothing from the network: the memory held at the peak.

    Args:
        capture (Path): the recording.
        path (Path): of the page.
        leaks (bool): show the memory not freed by the end instead.
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


def peak_bytes(capture: Path) -> int:
    """The most memory held at one time of a complete capture. It is in the file's head, so that this is quick."""
    with _reader(capture) as reader:
        return int(reader.metadata.peak_memory)


def _reader(capture: Path) -> Any:
    return import_optional('memray').FileReader(capture)


def _records(reader: Any, leaks: bool) -> Iterable[Any]:
    if leaks:
        return reader.get_leaked_allocation_records(merge_threads=True)
    return reader.get_high_watermark_allocation_records(merge_threads=True)


@dataclass(frozen=True)
class FunctionAllocations:
    """What one Python function allocated itself; ``line`` is that of the allocation."""

    function: str
    file: str
    line: int
    bytes: int
    allocations: int


@dataclass(frozen=True)
class MemrayStatistics:
    """The statistics of a capture. Only memory allocated while recording counts.

    Args:
        allocations (int): number of allocations.
        allocated_bytes (int, optional): their total size. None: an aggregated capture, which does not contain it.
        peak_bytes (int): the most held at one time.
        left_bytes (int): still held at the end.
        seconds (float): length of the recording.
        native_traces (bool): True if native stacks were recorded.
        allocators (Mapping[str, int], optional): number of allocations by allocator; None as above.
        at_peak (list[FunctionAllocations]): what each function held at the peak, the largest first.
        left (list[FunctionAllocations]): what each function left, the largest first.
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
    """The statistics of a capture, with up to ``most`` functions in each list."""
    memray = import_optional('memray')
    with _reader(capture) as reader:
        metadata = reader.metadata
        at_peak = _by_function(_records(reader, leaks=False))
    with _reader(capture) as reader:
        left = _by_function(_records(reader, leaks=True))
    totals: Any = None
    if metadata.file_format == memray.FileFormat.ALL_ALLOCATIONS:
        from memray._memray import compute_statistics  # used by `memray stats`; there is no public name

        totals = compute_statistics(str(capture))
    return MemrayStatistics(
        allocations=metadata.total_allocations if totals is None else totals.total_num_allocations,
        allocated_bytes=None if totals is None else totals.total_memory_allocated,
        peak_bytes=metadata.peak_memory,
        left_bytes=sum(function.bytes for function in left),
        seconds=(metadata.end_time - metadata.start_time).total_seconds(),
        native_traces=metadata.has_native_traces,
        allocators=None if totals is None else dict(totals.allocation_count_by_allocator),
        at_peak=at_peak[:most],
        left=left[:most],
    )


def _by_function(records: Iterable[Any]) -> list[FunctionAllocations]:
    """Allocations by the innermost Python function of their stack, the largest first."""
    sizes: Counter[tuple[str, str, int]] = Counter()
    counts: Counter[tuple[str, str, int]] = Counter()
    for record in records:
        stack = record.stack_trace(max_stacks=1)
        innermost = stack[0] if stack else ('(no Python function)', '', 0)
        sizes[innermost] += record.size
        counts[innermost] += record.n_allocations
    return [FunctionAllocations(*innermost, size, counts[innermost]) for innermost, size in sizes.most_common()]
