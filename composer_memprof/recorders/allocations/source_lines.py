"""The text of the lines that allocate, read while their files are as they ran."""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from typing import Any

#: Frames of an event whose lines are read, innermost first; the most lines, and the most characters of one.
_FRAMES, _MOST, _LONGEST = 40, 2000, 120
#: Files whose lines tell a user nothing.
_NOT_OF_USER = ('/torch/', '/composer/', '<')


def source_lines(snapshot: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """File, line and text of each line of a model's or a user's file that allocated.

    Args:
        snapshot (Mapping): as recorders make it.
    """
    seen: set[int] = set()
    found: dict[tuple[str, int], str] = {}
    for trace in snapshot['device_traces']:
        for event in trace:
            frames = event.get('frames', ())
            if event['action'] != 'alloc' or id(frames) in seen:
                continue
            seen.add(id(frames))
            for frame in frames[:_FRAMES]:
                place = frame['filename'], frame['line']
                if place in found or not place[0].endswith('.py') or any(part in place[0] for part in _NOT_OF_USER):
                    continue
                if len(found) == _MOST:
                    return _rows(found)
                found[place] = linecache.getline(*place).strip()[:_LONGEST]
    return _rows(found)


def _rows(found: Mapping[tuple[str, int], str]) -> list[tuple[str, int, str]]:
    return [(*place, text) for place, text in found.items() if text]
