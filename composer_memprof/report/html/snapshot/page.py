"""A memory snapshot as one HTML file: every block over time, nothing loaded from elsewhere, opened without a server.

Drawn on a canvas by some hundred lines of script of our own: a plotting library alone is as large as the whole page
may be, and draws a hundred thousand polygons as elements of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import markupsafe
import numpy as np

from composer_memprof.analysis.memory.categories import CATEGORIES, RULES
from composer_memprof.analysis.memory.failure import OutOfMemoryEvent, failure_moment, out_of_memory_of
from composer_memprof.analysis.memory.fragmentation import is_caching
from composer_memprof.analysis.memory.frames import is_own, own_frames, within_library
from composer_memprof.analysis.memory.phases import batch_and_phase as placed
from composer_memprof.analysis.memory.segment_map import SegmentMap, segment_map
from composer_memprof.analysis.memory.snapshot_report import notes_of
from composer_memprof.analysis.memory.timeline import AllocationTimeline as Timeline
from composer_memprof.analysis.memory.timeline import Lines, lines_of, sum_up_smaller, timeline_of
from composer_memprof.analysis.snapshot.model import OOM, DeviceHistory, Frame, Snapshot, Stack
from composer_memprof.messages import human_bytes
from composer_memprof.report.html.packed import pack
from composer_memprof.report.html.pages import CATEGORY_COLORS, PAGES, policy_hash, source
from composer_memprof.report.html.snapshot.segments import segment_columns, segments_in_words
from composer_memprof.report.text.places import library_frame_text as within_words

MAX_BYTES = 5_000_000
_SCRIPTS = (
    'packed.js',
    *(
        f'snapshot/snapshot_page{part}.js'
        for part in (
            '_data',
            '_picture',
            '_keys',
            '_tip',
            '_canvas',
            '_lists',
            '_tree',
            '_flame',
            '_bars',
            '_segments',
            '',
        )
    ),
)  # each builds on those before
#: Bytes of the page for each moment whose time is kept, those between being interpolated; and for each span that keeps
#: its extremes where smaller blocks are summed up; and for each piece of the segments that is drawn: 100,000 moments,
#: 4,000 spans and 10,000 pieces of a page as large as it may be.
_BYTES_A_TIME, _BYTES_A_SPAN, _BYTES_A_PIECE = 50, 1250, 500
#: What a name, a stack or the times without memory of a file that is not trusted may take of the page.
_LONGEST_NAME, _DEEPEST_STACK, _MARKS = 300, 200, 50
#: Frames of what asked for the memory that there was not.
_ASKED = 4


def write_snapshot_page(snapshot: Snapshot, path: Path, title: str, max_bytes: int = MAX_BYTES) -> None:
    """Write the page of a snapshot to ``path``, in at most ``max_bytes`` unless its names alone take more.

    As many of the largest blocks are drawn exactly as fit; the smaller ones are summed up, and the page says so.
    """
    path.write_text(snapshot_page(snapshot, title, max_bytes), encoding='utf-8')


def snapshot_page(snapshot: Snapshot, title: str, max_bytes: int = MAX_BYTES) -> str:
    """The page as text; see ``write_snapshot_page``."""
    lines = lines_of(snapshot.stacks)
    share = max_bytes // max(len(snapshot.devices), 1)
    spans, times = share // _BYTES_A_SPAN + 1, share // _BYTES_A_TIME + 16
    whole = [timeline_of(snapshot, history, spans) for history in snapshot.devices]
    maps = [
        segment_map(history, share // _BYTES_A_PIECE)
        if is_caching(snapshot, history) and len(history.segments)
        else None
        for history in snapshot.devices
    ]
    timelines = whole
    most = max((len(timeline.blocks) for timeline in whole), default=0)
    while True:
        page = _render(snapshot, timelines, maps, lines, title, times)
        size = len(page.encode('utf-8'))
        if size <= max_bytes or most == 0:
            return page
        # Blocks of one kind compress alike, so the share that fits is about the share to keep.
        most = int(most * min(0.9 * max_bytes / size, 0.8))
        timelines = [sum_up_smaller(timeline, lines, most) for timeline in whole]


@dataclass(frozen=True)
class _Facts:
    """What the page says of a device in words."""

    name: str
    peak: str
    moment: str
    reserved: str
    failed: str
    failed_moment: str
    drawn: str


@dataclass(frozen=True)
class _Failure:
    """What the page says of the failure that the snapshot was taken for."""

    headline: str
    sizes: str
    error: str
    asked: list[str]


def _render(
    snapshot: Snapshot,
    timelines: list[Timeline],
    maps: list[SegmentMap | None],
    lines: Lines,
    title: str,
    most_times: int,
) -> str:
    script = '\n'.join(map(source, _SCRIPTS))
    style = source('page.css') + source('snapshot/snapshot_page.css')
    kind = snapshot.meta.device or 'device'
    facts = [
        _facts(timeline, kind, snapshot, history, most_times) for timeline, history in zip(timelines, snapshot.devices)
    ]
    return PAGES.get_template('snapshot/snapshot_page.html.j2').render(
        title=title,
        facts=facts,
        failure=_failure(snapshot, timelines),
        has_segments=any(found is not None for found in maps),
        notes=notes_of(snapshot),
        script=markupsafe.Markup(script),  # noqa: S704  # our own
        style=markupsafe.Markup(style),  # noqa: S704  # our own
        script_hash=policy_hash(script),
        style_hash=policy_hash(style),
        data=pack(*_data(snapshot, timelines, maps, lines, [fact.name for fact in facts], most_times))
        if timelines
        else '',
    )


# -- in words -----------------------------------------------------------------------------------------------------


def _facts(timeline: Timeline, kind: str, snapshot: Snapshot, history: DeviceHistory, most_times: int) -> _Facts:
    failed = failure_moment(snapshot, history)
    reserved = '' if timeline.reserved is None else human_bytes(int(timeline.reserved.max()))
    return _Facts(
        name=_device_name(kind, timeline.device),
        peak=human_bytes(timeline.peak_bytes),
        moment=_when(timeline, timeline.peak, snapshot, history),
        reserved=reserved,
        failed='' if failed is None else human_bytes(int(timeline.total[failed])),
        failed_moment='' if failed is None else _when(timeline, failed, snapshot, history),
        drawn=_how_drawn(timeline, most_times),
    )


def _device_name(kind: str, number: int) -> str:
    return 'cpu' if kind == 'cpu' else f'{kind} {number}'


def _when(timeline: Timeline, moment: int, snapshot: Snapshot, history: DeviceHistory) -> str:
    words = f'after event {moment:,} of {timeline.events:,}'
    if timeline.time_us is not None:
        words += f', {_human_time(int(timeline.time_us[moment]))} from the first'
    return ', '.join([words, *_placed(*placed(history, snapshot.phases, moment))])


def _placed(batch: int | None, phase: str) -> list[str]:
    return [*([] if batch is None else [f'batch {batch}']), *([phase] if phase else [])]


def _how_drawn(timeline: Timeline, most_times: int) -> str:
    smaller, drawn = timeline.smaller, len(timeline.blocks)
    if smaller.blocks:
        # Rounded down: not all is never 100 %.
        share = 1000 * int(timeline.live_blocks(timeline.peak)['size'].sum()) // max(timeline.peak_bytes, 1) / 10
        words = (
            f'Of {drawn + smaller.blocks:,} blocks the {drawn:,} largest, {share:.1f} % of the peak, are drawn '
            f'one by one. The others, of {human_bytes(smaller.largest)} and less, are summed by line and category '
            f'at {len(smaller.moments):,} moments, the highest and lowest of each span among them, and hatched.'
        )
    else:
        words = f'All {drawn:,} blocks are drawn exactly.'
    if timeline.time_us is not None and len(timeline.time_us) > most_times:
        kept = _moments_with_time(timeline.time_us, most_times)
        between = np.interp(np.arange(len(timeline.time_us)), kept, timeline.time_us[kept])
        off = int(np.ceil(np.abs(between - timeline.time_us).max()))
        words += f' Times are off by at most {_human_time(off)}.'
    return words


def _human_time(time_us: int) -> str:
    if time_us < 1000:
        return f'{time_us} µs'
    return f'{time_us / 1000:.1f} ms' if time_us < 10_000_000 else f'{time_us / 1e6:.2f} s'


def _failure(snapshot: Snapshot, timelines: list[Timeline]) -> _Failure | None:
    oom = out_of_memory_of(snapshot, [(timeline.total, timeline.reserved) for timeline in timelines])
    if snapshot.oom is not None and oom is not None:
        return _out_of_memory(snapshot, oom)
    if not snapshot.error:
        return None
    history = next(iter(snapshot.devices), None)
    where = [] if history is None else _placed(*placed(history, snapshot.phases, len(history.action)))
    return _Failure(', '.join(['Training broke off', *where]), '', snapshot.error, [])


def _out_of_memory(snapshot: Snapshot, oom: OutOfMemoryEvent) -> _Failure:
    where = '' if oom.device is None else f' on {_device_name(snapshot.meta.device or "device", oom.device)}'
    asked = '' if oom.requested is None else f': {human_bytes(oom.requested)} asked for'
    sizes = [
        f'{human_bytes(size)} {words}'
        for words, size in (
            ('free on the device', oom.free),
            ('allocated', oom.allocated),
            ('reserved', oom.reserved),
            ('in all', oom.total),
        )
        if size is not None
    ]
    return _Failure(
        headline=', '.join([f'Out of memory{where}', *_placed(oom.batch, oom.phase)]) + asked,
        sizes=' · '.join(sizes),
        error=snapshot.error or oom.message or '',
        asked=[str(frame) for frame in oom.asked[:_ASKED]],
    )


# -- in numbers, as snapshot_page_data.js reads them ----------------------------------------------------------------


def _data(
    snapshot: Snapshot,
    timelines: list[Timeline],
    maps: list[SegmentMap | None],
    lines: Lines,
    names: list[str],
    most_times: int,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    curves = [timeline.smaller.lines for timeline in timelines]
    used = np.unique(np.concatenate([[0], *(timeline.blocks['stack'] for timeline in timelines)])).astype(np.int64)
    used_lines = np.unique(np.concatenate([lines.of_stack[used], *curves]))
    frames = _Frames()
    paths: dict[tuple[Stack, Frame | None], int] = {}
    path_of_stack = []
    for stack in used:
        own = own_frames(snapshot.stacks[stack])
        path_of_stack.append(paths.setdefault((own, within_library(snapshot.stacks[stack], own)), len(paths)))
    header: dict[str, Any] = {
        'stacks': [frames.indices(snapshot.stacks[stack]) for stack in used],
        'paths': [frames.indices(path) for path, _ in paths],
        'pathsWithin': [_within(within) for _, within in paths],
        'lines': [frames.indices(() if frame is None else (frame,)) for frame in (lines.frames[i] for i in used_lines)],
        'linesWithin': [_within(lines.within[i]) for i in used_lines],
        'modules': [module[-_LONGEST_NAME:] for module in snapshot.modules],
        'phases': snapshot.phases.names,
        'categories': [category.replace('_', ' ') for category in CATEGORIES],
        'categoryColours': [CATEGORY_COLORS[category] for category in CATEGORIES],
        'rules': RULES,
        'tensors': [name[-_LONGEST_NAME:] for name in snapshot.tensors.names],
        'outOfMemory': snapshot.oom is not None,
        'devices': [],
    }
    columns = {
        'lineOfStack': np.searchsorted(used_lines, lines.of_stack[used]).astype(np.int32),
        'pathOfStack': np.array(path_of_stack, dtype=np.int32),
    }
    for number, (timeline, found, history) in enumerate(zip(timelines, maps, snapshot.devices)):
        smaller = timeline.smaller
        header['devices'].append(
            {
                'name': names[number],
                'events': timeline.events,
                'peak': timeline.peak,
                'failure': failure_moment(snapshot, history),
                'outOfMemory': np.flatnonzero(history.action == OOM)[:_MARKS].tolist(),
                'smallerBlocks': smaller.blocks,
                'curves': np.searchsorted(used_lines, smaller.lines).tolist(),
                'curveCategories': smaller.categories.tolist(),
                'segments': None if found is None else segments_in_words(found),
            }
        )
        parts = _device_columns(timeline, history, snapshot, most_times)
        parts['stack'] = np.searchsorted(used, timeline.blocks['stack']).astype(np.int32)
        if found is not None:
            parts.update(segment_columns(found, timeline, history))
        columns.update({f'{number}.{name}': column for name, column in parts.items()})
    header['frames'] = frames.listed
    header['files'] = list(frames.files)
    header['names'] = list(frames.names)
    header['ownFiles'] = [int(is_own(file)) for file in frames.whole_paths]
    return header, columns


def _device_columns(
    timeline: Timeline, history: DeviceHistory, snapshot: Snapshot, most_times: int
) -> dict[str, np.ndarray]:
    blocks, smaller = timeline.blocks, timeline.smaller
    sizes, size = np.unique(blocks['size'], return_inverse=True)
    columns = {
        'born': blocks['born'],
        'life': blocks['died'] - blocks['born'],
        'sizes': sizes,
        'size': size.astype(np.int32),
        'module': blocks['module'],
        'category': blocks['category'].astype(np.int32),
        'rule': blocks['rule'].astype(np.int32),
        'tensor': np.append(snapshot.tensors.name, 0)[blocks['tensor']].astype(np.int32),
        'smallerMoments': smaller.moments.astype(np.int32),
        'smallerSizes': smaller.sizes,
    }
    if timeline.reserved is not None:
        changes = _changes(timeline.reserved, most_times // 4)
        columns['reservedMoments'] = changes.astype(np.int32)
        columns['reservedSizes'] = timeline.reserved[changes]
    if timeline.time_us is not None:
        kept = _moments_with_time(timeline.time_us, most_times)
        columns['timeMoments'] = kept.astype(np.int32)
        columns['times'] = timeline.time_us[kept]
        phases = snapshot.phases
        # The events before this moment came before the phase.
        columns['phaseMoments'] = np.searchsorted(timeline.time_us[1:], phases.time_us - history.time_us[0]).astype(
            np.int32
        )
        columns['phaseTimes'] = phases.time_us - history.time_us[0]
        columns['phaseBatches'] = phases.batch
        columns['phaseNames'] = phases.name.astype(np.int32)
    return columns


def _within(frame: Frame | None) -> str:
    return '' if frame is None else within_words(frame)[:_LONGEST_NAME]


def _changes(values: np.ndarray, most: int) -> np.ndarray:
    """Where a curve begins, and where it is other than before; of a curve with very many steps, its extremes."""
    found = np.append(0, np.flatnonzero(np.diff(values)) + 1)
    if len(found) <= most:
        return found
    width = -(-len(found) // (most // 2))
    groups = [found[begin : begin + width] for begin in range(0, len(found), width)]
    kept = [place for group in groups for place in (group[values[group].argmax()], group[values[group].argmin()])]
    return np.unique([0, *kept])


def _moments_with_time(times: np.ndarray, most: int) -> np.ndarray:
    """All moments, or every so many and those around the longest pauses, where interpolation would be most wrong."""
    if len(times) <= most:
        return np.arange(len(times))
    even = np.linspace(0, len(times) - 1, most // 2).astype(np.int64)
    pauses = np.argpartition(-np.diff(times), most // 4)[: most // 4]
    return np.unique(np.concatenate([even, pauses, pauses + 1]))


class _Frames:
    """Gives frames an index, and their files' and functions' names."""

    def __init__(self) -> None:
        self.listed: list[tuple[int, int, int]] = []
        self.files: dict[str, int] = {}
        self.names: dict[str, int] = {}
        self.whole_paths: list[str] = []  # of each file, which the page may have cut
        self._known: dict[Frame, int] = {}

    def indices(self, stack: Stack) -> list[int]:
        return [self._index(frame) for frame in _cut(stack)]

    def _index(self, frame: Frame) -> int:
        index = self._known.setdefault(frame, len(self.listed))
        if index == len(self.listed):
            file, name = frame.filename[-_LONGEST_NAME:], frame.name[:_LONGEST_NAME]
            if file not in self.files:
                self.whole_paths.append(frame.filename)
            self.listed.append(
                (self.files.setdefault(file, len(self.files)), frame.line, self.names.setdefault(name, len(self.names)))
            )
        return index


def _cut(stack: Stack) -> Iterable[Frame]:
    return stack[:_DEEPEST_STACK]
