"""Python calls as one HTML file: the longest calls over time, and all calls summed by function. Loads nothing.

Speedscope 1.25 with its script in the page was measured instead: 100,000 calls took 1.9 s to open, not 0.4 s; a million
10.4 s, not 1.0 s, in 6.1 MB, above the limit of a page. It needs inline styles in the content security policy, does not
show batches, and its own times would be wrong in a page that leaves out short calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import markupsafe
import numpy as np

from composer_memprof.report.html.bundle import bundle
from composer_memprof.report.html.packed import pack
from composer_memprof.report.html.pages import PAGES, policy_hash, source

MAX_BYTES = 5_000_000
#: A first guess of the size of a call in the page.
_BYTES_PER_CALL = 8
_MAX_FUNCTIONS, _MAX_MARKS, _MAX_NAME = 300, 1000, 300


@dataclass(frozen=True)
class FunctionTime:
    """All calls of a function: their number, their time, and their time without the calls they made, in microseconds."""

    name: str
    calls: int
    total_us: float
    own_us: float


@dataclass(frozen=True)
class Calls:
    """Calls as columns, by thread and then by start; times in microseconds. ``depth`` counts the calls around a call."""

    name: np.ndarray
    start: np.ndarray
    duration: np.ndarray
    thread: np.ndarray
    depth: np.ndarray
    names: list[str]
    threads: list[str]


def write_call_timeline(
    events: Sequence[Mapping[str, Any]], path: Path, title: str, max_bytes: int = MAX_BYTES
) -> None:
    """Write the page of ``events`` (Chrome's trace format) to ``path``, about ``max_bytes`` at most.

    Keeps as many of the longest calls as fit.
    """
    path.write_text(call_timeline_page(events, title, max_bytes), encoding='utf-8')


def call_timeline_page(events: Sequence[Mapping[str, Any]], title: str, max_bytes: int = MAX_BYTES) -> str:
    """The page as text; see ``write_call_timeline``."""
    calls, functions = read_calls(events)
    begin = float(calls.start.min()) if len(calls.start) else 0.0
    marks = [(event['ts'] - begin, _short(event['name'])) for event in events if event['ph'] == 'i'][:_MAX_MARKS]
    by_length = np.argsort(-calls.duration, kind='stable')
    most = min(len(by_length), max_bytes // _BYTES_PER_CALL)
    while True:
        page = _render(calls, np.sort(by_length[:most]), functions, marks, begin, title)
        if len(page) <= max_bytes or most == 0:
            return page
        most = int(most * min(0.9 * max_bytes / len(page), 0.8))


def read_calls(events: Sequence[Mapping[str, Any]]) -> tuple[Calls, list[FunctionTime]]:
    """The calls in ``events``, and the times of each function, the longest own time first."""
    found = [event for event in events if event['ph'] == 'X']
    threads = {
        (event['pid'], event['tid']): f'{event["args"]["name"]} ({event["tid"]})'
        for event in events
        if event['ph'] == 'M' and event['name'] == 'thread_name'
    }
    places = {thread: number for number, thread in enumerate(threads)}
    for event in found:
        thread = (event['pid'], event['tid'])
        if thread not in places:
            places[thread] = len(threads)
            threads[thread] = str(event['tid'])
    names: dict[str, int] = {}
    name = np.array([names.setdefault(event['name'], len(names)) for event in found], dtype=np.int32)
    start = np.array([event['ts'] for event in found], dtype=np.float64)
    duration = np.array([event['dur'] for event in found], dtype=np.float64)
    thread_of = np.array([places[event['pid'], event['tid']] for event in found], dtype=np.int32)
    order = np.lexsort((-duration, start, thread_of))
    name, start, duration, thread_of = name[order], start[order], duration[order], thread_of[order]
    depth, own = _nest(start, duration, thread_of)
    calls = Calls(
        name, start, duration, thread_of, depth, [_short(text) for text in names], [_short(t) for t in threads.values()]
    )
    return calls, _by_function(calls, own)


def _nest(start: np.ndarray, duration: np.ndarray, thread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The depth of each call, and its own time."""
    depth = np.zeros(len(start), dtype=np.int32)
    own = duration.copy()
    around: list[int] = []
    ends = start + duration
    starts, finishes, on = start.tolist(), ends.tolist(), thread.tolist()
    for call in range(len(starts)):
        while around and (on[around[-1]] != on[call] or finishes[around[-1]] <= starts[call]):
            around.pop()
        depth[call] = len(around)
        if around:
            own[around[-1]] -= duration[call]
        around.append(call)
    return depth, own


def _by_function(calls: Calls, own: np.ndarray) -> list[FunctionTime]:
    """The times of each function. The total of a function that calls itself counts both calls."""
    size = len(calls.names)
    counts = np.bincount(calls.name, minlength=size)
    totals = np.bincount(calls.name, weights=calls.duration, minlength=size)
    owns = np.bincount(calls.name, weights=own, minlength=size)
    return [
        FunctionTime(calls.names[i], int(counts[i]), float(totals[i]), float(owns[i]))
        for i in np.argsort(-owns)
        if size
    ]


def _short(name: Any) -> str:
    return str(name)[-_MAX_NAME:]


def _render(
    calls: Calls,
    kept: np.ndarray,
    functions: Sequence[FunctionTime],
    marks: Sequence[tuple[float, str]],
    begin: float,
    title: str,
) -> str:
    script, style = bundle('calls/script/main.js'), source('page.css') + source('calls/call_timeline.css')
    end = float((calls.start + calls.duration).max()) - begin if len(calls.start) else 0.0
    tick = max(0.01, end / 2e9)  # in microseconds; a column holds 32 bits
    used = np.unique(calls.name[kept])
    header = {
        'names': [calls.names[i] for i in used],
        'threads': calls.threads,
        'tick': tick,
        'end': end,
        'marks': [list(mark) for mark in marks],
    }
    columns = {
        'name': np.searchsorted(used, calls.name[kept]).astype(np.int32),
        'start': ((calls.start[kept] - begin) / tick).astype(np.int32),
        'duration': (calls.duration[kept] / tick).astype(np.int32),
        'thread': calls.thread[kept],
        'depth': calls.depth[kept],
    }
    return PAGES.get_template('calls/call_timeline.html.j2').render(
        title=title,
        drawn=_how_drawn(calls, kept),
        functions=[_row(function) for function in functions[:_MAX_FUNCTIONS]],
        left_out=max(len(functions) - _MAX_FUNCTIONS, 0),
        script=markupsafe.Markup(script),  # noqa: S704  # our own
        style=markupsafe.Markup(style),  # noqa: S704  # our own
        script_hash=policy_hash(script),
        style_hash=policy_hash(style),
        data=pack(header, columns),
    )


def _row(function: FunctionTime) -> tuple[str, str, str, str]:
    return f'{function.own_us / 1e3:.3f}', f'{function.total_us / 1e3:.3f}', f'{function.calls:,}', function.name


def _how_drawn(calls: Calls, kept: np.ndarray) -> str:
    everything = len(calls.name)
    if len(kept) == everything:
        return f'All {everything:,} calls are drawn.'
    shortest = float(calls.duration[kept].min()) if len(kept) else 0.0
    return (
        f'Of {everything:,} calls the {len(kept):,} longest are drawn, of {shortest:.1f} µs and more; '
        'the functions below are summed over all calls.'
    )
