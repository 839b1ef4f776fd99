"""A memory snapshot as one HTML file: every block over time. Loads nothing and needs no server.

The canvas is drawn by our own script: a plotting library alone is as large as a page may be, and draws each of a
hundred thousand polygons as an element.
"""

from __future__ import annotations

from pathlib import Path

import markupsafe

from composer_memprof.analysis.memory.findings.fragmentation import is_caching
from composer_memprof.analysis.memory.pictures.segment_map import SegmentMap, segment_map
from composer_memprof.analysis.memory.pictures.timeline import (
    AllocationTimeline,
    Lines,
    lines_of,
    sum_up_smaller,
    timeline_of,
)
from composer_memprof.analysis.memory.snapshot_report import notes_of
from composer_memprof.analysis.snapshot.model import Snapshot
from composer_memprof.report.html.bundle import bundle
from composer_memprof.report.html.packed import pack
from composer_memprof.report.html.pages import PAGES, policy_hash, source
from composer_memprof.report.html.snapshot.data import page_data
from composer_memprof.report.html.snapshot.facts import device_facts, failure_facts

MAX_BYTES = 5_000_000
#: Bytes of the size limit for each exact time (the others are interpolated), each span of summed blocks and each drawn
#: piece of a segment: 100,000 times, 4,000 spans and 10,000 pieces in the largest page.
_BYTES_PER_TIME, _BYTES_PER_SPAN, _BYTES_PER_PIECE = 50, 1250, 500


def page_title(run_name: str, rank: int, batch: int) -> str:
    """The title of the page of a run's snapshot."""
    return f'{run_name}, rank {rank}, batch {batch}'


def write_snapshot_page(snapshot: Snapshot, path: Path, title: str, max_bytes: int = MAX_BYTES) -> None:
    """Write the page of a snapshot to ``path``, at most ``max_bytes`` large unless its names alone take more.

    Draws as many of the largest blocks one by one as fit. Smaller ones are summed, and the page says so.
    """
    path.write_text(snapshot_page(snapshot, title, max_bytes), encoding='utf-8')


def snapshot_page(snapshot: Snapshot, title: str, max_bytes: int = MAX_BYTES) -> str:
    """The page as text; see ``write_snapshot_page``."""
    lines = lines_of(snapshot.stacks)
    share = max_bytes // max(len(snapshot.devices), 1)
    spans, times = share // _BYTES_PER_SPAN + 1, share // _BYTES_PER_TIME + 16
    whole = [timeline_of(snapshot, history, spans) for history in snapshot.devices]
    maps = [
        segment_map(history, share // _BYTES_PER_PIECE)
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


def _render(
    snapshot: Snapshot,
    timelines: list[AllocationTimeline],
    maps: list[SegmentMap | None],
    lines: Lines,
    title: str,
    max_times: int,
) -> str:
    script = bundle('snapshot/script/main.js')
    style = source('page.css') + source('snapshot/snapshot.css')
    facts = [
        device_facts(timeline, snapshot, history, max_times) for timeline, history in zip(timelines, snapshot.devices)
    ]
    data = page_data(snapshot, timelines, maps, lines, [fact.name for fact in facts], max_times) if timelines else None
    return PAGES.get_template('snapshot/snapshot.html.j2').render(
        title=title,
        facts=facts,
        failures=failure_facts(snapshot, timelines),
        has_segments=any(found is not None for found in maps),
        notes=notes_of(snapshot),
        script=markupsafe.Markup(script),  # noqa: S704  # our own
        style=markupsafe.Markup(style),  # noqa: S704  # our own
        script_hash=policy_hash(script),
        style_hash=policy_hash(style),
        data=pack(*data) if data else '',
    )
