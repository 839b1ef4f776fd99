"""The data of a snapshot's page, as ``script/types.d.ts`` and ``script/timeline.js`` read it."""

from __future__ import annotations

from typing import Any

import numpy as np

from composer_memprof.analysis.memory.blocks.frames import is_own, own_frames, within_library
from composer_memprof.analysis.memory.categories.categories import RULES
from composer_memprof.analysis.memory.findings.failure import failure_moment
from composer_memprof.analysis.memory.pictures.segment_map import SegmentMap
from composer_memprof.analysis.memory.pictures.timeline import AllocationTimeline, Lines
from composer_memprof.analysis.snapshot.model import OOM, DeviceHistory, Frame, Snapshot, Stack
from composer_memprof.report.html.snapshot.segments import segment_columns, segment_texts
from composer_memprof.report.html.snapshot.times import changes_kept, times_kept
from composer_memprof.report.text.places import library_frame_text
from composer_memprof.vocabulary import CATEGORY_KEYS, MEMORY_CATEGORIES, PHASE_COLORS, UNKNOWN_COLOR

#: Limits for what a file that is not trusted puts into the page.
_MAX_NAME, _MAX_STACK, _MAX_MARKS = 300, 200, 50


def page_data(
    snapshot: Snapshot,
    timelines: list[AllocationTimeline],
    maps: list[SegmentMap | None],
    lines: Lines,
    names: list[str],
    max_times: int,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the columns that ``packed.pack`` takes. Columns of a device have its number before their name."""
    curves = [timeline.smaller.lines for timeline in timelines]
    used = np.unique(np.concatenate([[0], *(timeline.blocks['stack'] for timeline in timelines)])).astype(np.int64)
    used_lines = np.unique(np.concatenate([lines.of_stack[used], *curves]))
    frames = _FrameTable()
    paths: dict[tuple[Stack, Frame | None], int] = {}
    path_of_stack = []
    for stack in used:
        own = own_frames(snapshot.stacks[stack])
        path_of_stack.append(paths.setdefault((own, within_library(snapshot.stacks[stack], own)), len(paths)))
    header: dict[str, Any] = {
        'stacks': [frames.indices(snapshot.stacks[stack]) for stack in used],
        'paths': [frames.indices(path) for path, _ in paths],
        'pathsWithin': [_within_text(within) for _, within in paths],
        'lines': [frames.indices(() if frame is None else (frame,)) for frame in (lines.frames[i] for i in used_lines)],
        'linesWithin': [_within_text(lines.within[i]) for i in used_lines],
        'modules': [module[-_MAX_NAME:] for module in snapshot.modules],
        'phases': snapshot.phases.names,
        'phaseColors': [PHASE_COLORS.get(phase, UNKNOWN_COLOR) for phase in snapshot.phases.names],
        'categories': [{'label': category.label, 'color': category.color} for category in MEMORY_CATEGORIES],
        'unknownCategory': CATEGORY_KEYS.index('unknown'),
        'rules': RULES,
        'tensors': [name[-_MAX_NAME:] for name in snapshot.tensors.names],
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
                'outOfMemory': np.flatnonzero(history.action == OOM)[:_MAX_MARKS].tolist(),
                'curves': np.searchsorted(used_lines, smaller.lines).tolist(),
                'curveCategories': smaller.categories.tolist(),
                'segments': None if found is None else segment_texts(found),
            }
        )
        parts = _device_columns(timeline, history, snapshot, max_times)
        parts['stack'] = np.searchsorted(used, timeline.blocks['stack']).astype(np.int32)
        if found is not None:
            parts.update(segment_columns(found, timeline, history))
        columns.update({f'{number}.{name}': column for name, column in parts.items()})
    header['frames'] = frames.rows
    header['files'] = list(frames.files)
    header['names'] = list(frames.names)
    header['ownFiles'] = [int(is_own(file)) for file in frames.full_paths]
    return header, columns


def _device_columns(
    timeline: AllocationTimeline, history: DeviceHistory, snapshot: Snapshot, max_times: int
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
        changes = changes_kept(timeline.reserved, max_times // 4)
        columns['reservedMoments'] = changes.astype(np.int32)
        columns['reservedSizes'] = timeline.reserved[changes]
    if timeline.time_us is not None:
        kept = times_kept(timeline.time_us, max_times)
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


def _within_text(frame: Frame | None) -> str:
    return '' if frame is None else library_frame_text(frame)[:_MAX_NAME]


class _FrameTable:
    """The frames of the page, each once, and the names of their files and functions."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self.files: dict[str, int] = {}
        self.names: dict[str, int] = {}
        self.full_paths: list[str] = []  # of each file; those in ``files`` may be cut
        self._known: dict[Frame, int] = {}

    def indices(self, stack: Stack) -> list[int]:
        return [self._index(frame) for frame in stack[:_MAX_STACK]]

    def _index(self, frame: Frame) -> int:
        index = self._known.setdefault(frame, len(self.rows))
        if index == len(self.rows):
            file, name = frame.filename[-_MAX_NAME:], frame.name[:_MAX_NAME]
            if file not in self.files:
                self.full_paths.append(frame.filename)
            self.rows.append(
                (self.files.setdefault(file, len(self.files)), frame.line, self.names.setdefault(name, len(self.names)))
            )
        return index
