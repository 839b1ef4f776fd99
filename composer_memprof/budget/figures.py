"""What a run came to, small enough to lie beside the code: its peaks, and what filled them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Optional

from composer_memprof.analysis.memory.blocks.frames import in_package, is_installed
from composer_memprof.analysis.memory.findings.attribution import PlaceShare
from composer_memprof.analysis.memory.findings.diff import PlaceChange, place_changes
from composer_memprof.analysis.snapshot.model import Frame

#: Smaller parts of the peak are summed up in no line, and most places, frames of one, and parts of a path elsewhere.
_SMALLEST, _PLACES, _FRAMES, _PARTS = 0.001, 48, 2, 3
_FRAME = re.compile(r'(.+):(\d+) (.*)')


@dataclass(frozen=True)
class PlaceFigure:
    """A place in the code and its bytes at the peak.

    Args:
        bytes (int): of its blocks.
        blocks (int): how many there are.
        category (str): of memory.
        module (str): that most of them belong to, equal layers taken together; ``''`` if none is known.
        at (list[str]): its frames, innermost first, such as ``model.py:31 forward``; empty without a stack.
        within (str): the library's frame that allocated for these; ``''`` if they show it.
    """

    bytes: int
    blocks: int
    category: str
    module: str
    at: list[str]
    within: str = ''


@dataclass(frozen=True)
class Figures:
    """What a run came to, in bytes.

    Args:
        setup (dict[str, str]): what was run, by the budget's keys: other settings have other figures.
        allocated (int): the most in blocks of torch's allocator.
        reserved (int): the most that it took from the device.
        batch (int, optional): in which the peak is.
        phase (str): in which the peak is.
        places (list[PlaceFigure]): that hold the peak, largest first.
    """

    setup: dict[str, str]
    allocated: int
    reserved: int
    batch: Optional[int]
    phase: str
    places: list[PlaceFigure]


def place_figures(places: Iterable[PlaceShare]) -> list[PlaceFigure]:
    """The places with their blocks of all rules summed, without the smallest ones."""
    sums: dict[tuple[str, str, tuple[str, ...], str], tuple[int, int]] = {}
    for place in places:
        at = tuple(_text(frame) for frame in place.frames[:_FRAMES])
        key = (place.category, place.owner, at, '' if place.within is None else _text(place.within))
        size, blocks = sums.get(key, (0, 0))
        sums[key] = size + place.bytes, blocks + place.blocks
    whole = sum(size for size, _ in sums.values())
    found = [
        PlaceFigure(size, blocks, category, module, list(at), within)
        for (category, module, at, within), (size, blocks) in sums.items()
        if size >= _SMALLEST * whole
    ]
    return sorted(found, key=lambda place: -place.bytes)[:_PLACES]


def grown(before: Sequence[PlaceFigure], after: Sequence[PlaceFigure]) -> list[PlaceChange]:
    """The places that hold more than before, most first; lines may have moved."""
    changes = place_changes([_share(place) for place in before], [_share(place) for place in after])
    return [change for change in changes if change.bytes > 0]


def _text(frame: Frame) -> str:
    """With a path that is the same in another checkout."""
    file = frame.filename
    if is_installed(file):
        file = in_package(file)
    elif os.path.isabs(file):
        inside = os.path.relpath(file)
        file = str(PurePath(*PurePath(file).parts[-_PARTS:])) if inside.startswith(os.pardir) else inside
    return str(Frame(file, frame.line, frame.name))


def _frame(text: str) -> Frame:
    found = _FRAME.fullmatch(text)
    if found is not None:
        return Frame(found[1], int(found[2]), found[3])
    file, _, name = text.partition(' ')
    return Frame(file, 0, name)


def _share(place: PlaceFigure) -> PlaceShare:
    return PlaceShare(
        bytes=place.bytes,
        blocks=place.blocks,
        largest=place.bytes,
        category=place.category,
        rule='',
        before=False,
        frames=[_frame(text) for text in place.at],
        folded=0,
        within=_frame(place.within) if place.within else None,
        module='' if place.at else place.module,
        owner=place.module,
    )
