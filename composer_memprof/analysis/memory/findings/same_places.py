"""Which place in the code of one recording is which of another one: lines may have moved, the checkout may lie elsewhere.

A stack is compared by the ends of its files' paths, its functions and their order. Places that differ by their lines only
are matched in the order of their lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Optional

from composer_memprof.analysis.memory.findings.attribution import PlaceShare
from composer_memprof.analysis.snapshot.model import Frame

#: Most parts of a path's end that are compared.
_MOST_PARTS = 16
#: Files whose name alone says nothing.
_COMMON_NAMES = ('__init__.py', '__main__.py')
#: Most pairs of places of one function that are weighed against each other; more are matched in their order.
_MOST_PAIRS = 10_000

Pair = tuple[Optional[PlaceShare], Optional[PlaceShare]]


def pair_places(before: Sequence[PlaceShare], after: Sequence[PlaceShare]) -> list[Pair]:
    """Pairs of a place before and the same place after; None in a pair if a place is on one side only.

    Blocks of one place and category are summed, whatever rule decided their category.
    """
    before, after = _summed(before), _summed(after)
    names = same_files(_files(before), _files(after))
    groups: dict[object, tuple[list[PlaceShare], list[PlaceShare]]] = {}
    for side, places in enumerate((before, after)):
        for place in places:
            key = place.category, place.module, _functions(place, names if side == 0 else {})
            groups.setdefault(key, ([], []))[side].append(place)
    return [pair for both in groups.values() for pair in _in_order(*(sorted(side, key=_lines) for side in both))]


def same_files(before: Iterable[str], after: Iterable[str]) -> dict[str, str]:
    """The file of ``after`` that each file of ``before`` is: of the same path, else with the longest common end.

    >>> same_files(['/home/me/model/train.py', '/home/me/x/run.py'], ['/ci/model/train.py', '/ci/train.py'])
    {'/home/me/model/train.py': '/ci/model/train.py'}
    """
    left, right = dict.fromkeys(before), dict.fromkeys(after)
    found = {file: file for file in left if file in right}
    rest_left, rest_right = [file for file in left if file not in found], [file for file in right if file not in left]
    for count in range(_MOST_PARTS, 0, -1):
        by_end: dict[tuple[str, ...], list[str]] = {}
        for file in sorted(rest_right):
            by_end.setdefault(_end(file, count), []).append(file)
        taken = set()
        for file in sorted(rest_left):
            same = by_end.get(_end(file, count))
            if same and not (count == 1 and PurePath(file).name in _COMMON_NAMES):
                found[file] = same.pop(0)
                taken.add(found[file])
        rest_left = [file for file in rest_left if file not in found]
        rest_right = [file for file in rest_right if file not in taken]
    return found


def _summed(places: Iterable[PlaceShare]) -> list[PlaceShare]:
    found: dict[object, PlaceShare] = {}
    for place in places:
        key = place.category, place.module, tuple(_frames(place)), place.within is None
        same = found.get(key)
        if same is None:
            found[key] = place
        else:
            found[key] = replace(same, bytes=same.bytes + place.bytes, blocks=same.blocks + place.blocks)
    return list(found.values())


def _end(file: str, count: int) -> tuple[str, ...]:
    """The last ``count`` parts of a path; of a shorter path all of it."""
    return tuple(file.replace('\\', '/').rsplit('/', count)[-count:])


def _files(places: Iterable[PlaceShare]) -> list[str]:
    return list(dict.fromkeys(frame.filename for place in places for frame in _frames(place)))


def _frames(place: PlaceShare) -> list[Frame]:
    return place.frames if place.within is None else [place.within, *place.frames]


def _functions(place: PlaceShare, names: dict[str, str]) -> tuple[object, ...]:
    return (
        place.within is None,
        *((names.get(frame.filename, frame.filename), frame.name) for frame in _frames(place)),
    )


def _lines(place: PlaceShare) -> list[int]:
    """The lines of the frames, outermost first: a function that moves in its file moves all of its lines."""
    return [frame.line for frame in reversed(_frames(place))]


def _in_order(before: Sequence[PlaceShare], after: Sequence[PlaceShare]) -> list[Pair]:
    """Pair two lists that are in order of lines. If their lengths differ, the places that fit least stay alone."""
    rows, columns = len(before), len(after)
    if rows == columns or not rows or not columns or rows * columns > _MOST_PAIRS:
        both = min(rows, columns)
        alone: list[Pair] = [(place, None) for place in before[both:]]
        return [*zip(before[:both], after[:both]), *alone, *((None, place) for place in after[both:])]
    best = [[0] * (columns + 1) for _ in range(rows + 1)]
    for row in range(rows - 1, -1, -1):
        for column in range(columns - 1, -1, -1):
            paired = _likeness(before[row], after[column]) + best[row + 1][column + 1]
            best[row][column] = max(paired, best[row + 1][column], best[row][column + 1])
    pairs: list[Pair] = []
    row = column = 0
    while row < rows and column < columns:
        if best[row][column] == _likeness(before[row], after[column]) + best[row + 1][column + 1]:
            pairs.append((before[row], after[column]))
            row, column = row + 1, column + 1
        elif best[row][column] == best[row + 1][column]:
            pairs.append((before[row], None))
            row += 1
        else:
            pairs.append((None, after[column]))
            column += 1
    return [*pairs, *((place, None) for place in before[row:]), *((None, place) for place in after[column:])]


def _likeness(before: PlaceShare, after: PlaceShare) -> int:
    """More for the same lines, size or number of blocks; but any pair is better than none."""
    return 4 + 2 * (_lines(before) == _lines(after)) + (before.bytes == after.bytes) + (before.blocks == after.blocks)
