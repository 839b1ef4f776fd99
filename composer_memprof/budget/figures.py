"""What a run came to, small enough to lie beside the code: its peaks, and what filled them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Optional

from composer_memprof.analysis.memory.blocks.frames import in_package, is_installed
from composer_memprof.analysis.memory.findings.attribution import PlaceShare
from composer_memprof.analysis.memory.findings.same_places import pair_places
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
    """What a run came to. Sizes are in bytes.

    Args:
        setup (dict[str, str]): what was run, by the budget's keys: other settings have other figures.
        allocated (int): the most in blocks of torch's allocator.
        reserved (int): the most that it took from the device.
        batch (int, optional): in which the peak is.
        phase (str): in which the peak is.
        places (list[PlaceFigure]): that hold the peak, largest first.
        step_seconds (float, optional): of a step on the device; None if it is not known.
        growth (int): what each step keeps, of a command that was ended after some steps.
    """

    setup: dict[str, str]
    allocated: int
    reserved: int
    batch: Optional[int]
    phase: str
    places: list[PlaceFigure]
    step_seconds: Optional[float] = None
    growth: int = 0


@dataclass(frozen=True)
class Growth:
    """A place that holds more at the peak than before.

    Args:
        category (str): of memory, the one that grew most.
        module (str): that most of it belongs to; ``''`` if none is known.
        frames (list[Frame]): innermost first; empty without a stack.
        within (Frame, optional): the library's frame that allocated for these.
        before (int): bytes.
        after (int): bytes.
    """

    category: str
    module: str
    frames: list[Frame]
    within: Optional[Frame]
    before: int
    after: int

    @property
    def bytes(self) -> int:
        return self.after - self.before


#: Its frames, the library's, and its module if it has none.
_Place = tuple[tuple[str, ...], str, str]


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


def grown(before: Sequence[PlaceFigure], after: Sequence[PlaceFigure]) -> list[Growth]:
    """The places that hold more than before, most first. Lines may have moved, and blocks changed their category."""
    left, right = _by_place(before), _by_place(after)
    found = []
    for one, other in pair_places(
        [_share(places) for places in left.values()], [_share(each) for each in right.values()]
    ):
        if other is None:
            continue
        then, now = [] if one is None else left[_place(one)], right[_place(other)]
        sizes = Counter({place.category: place.bytes for place in now})
        sizes.subtract({place.category: place.bytes for place in then})
        found.append(
            Growth(
                category=sizes.most_common(1)[0][0],
                module=now[0].module,
                frames=other.frames,
                within=other.within,
                before=sum(place.bytes for place in then),
                after=other.bytes,
            )
        )
    return sorted((each for each in found if each.bytes > 0), key=lambda each: -each.bytes)


def _by_place(places: Iterable[PlaceFigure]) -> dict[_Place, list[PlaceFigure]]:
    """The places of one line of the code, of all categories, largest first."""
    found: dict[_Place, list[PlaceFigure]] = {}
    for place in sorted(places, key=lambda place: -place.bytes):
        found.setdefault(_place(_share([place])), []).append(place)
    return found


def _place(share: PlaceShare) -> _Place:
    return (*map(str, share.frames),), str(share.within or ''), share.module


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


def _share(places: Sequence[PlaceFigure]) -> PlaceShare:
    """The places of one line as one, which is compared whatever its blocks are for."""
    first = places[0]
    return PlaceShare(
        bytes=sum(place.bytes for place in places),
        blocks=sum(place.blocks for place in places),
        largest=first.bytes,
        category='',
        rule='',
        before=False,
        frames=[_frame(text) for text in first.at],
        folded=0,
        within=_frame(first.within) if first.within else None,
        module='' if first.at else first.module,
    )
