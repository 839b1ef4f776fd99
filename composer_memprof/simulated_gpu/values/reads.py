"""Which values the script read from the device: where, what, whether they were assumed, and how often."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import json
import os
import sys
import sysconfig
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from composer_memprof.simulated_gpu.values.script.uses import Use, use_at

#: How the line of a read begins in the file of notes.
LINE = 'read: '
#: How the note of a place begins whose masks keep the part that the user gave.
_KEPT = 'kept: '
#: What a value decides most likely; a number that is only shown decides nothing.
NUMBER, BRANCH, SHAPE = 'number', 'branch', 'shape'
#: The answer that ends a loop which no other answer has ended.
LOOP = 'loop'
#: The loop went on after several such answers, until the script failed in it.
ENDLESS = 'endless'
#: A guess that may have ended a loop, after which the script made no further step.
END = 'end'

_HERE = str(Path(__file__).parents[2])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ('stdlib', 'purelib', 'platlib')})
_NOTES_VARIABLE = 'SIMULATED_GPU_NOTES'
_GUESSED = 2


@dataclasses.dataclass(frozen=True)
class Read:
    """A read by one line of code.

    Attributes:
        place: the line that read, outside of torch, as ``file:line``.
        caller: the line of the script that led there, where the place is in a library.
        what: ``shape`` if the size of a tensor follows from it, ``branch`` for a yes or no and for a number by which the
            script decides, ``number`` for others, ``loop`` for the answer that ends a loop after many others,
            ``endless`` if the loop went on all the same until the script failed in it, ``end`` for a guess by which the loop of
            the steps may have ended, after which there was no step.
        value: the first one given, as text.
        sure: 0 if it is what the script's own values come to, 1 if it is what a working training has, 2 if it is a guess.
        count: how often.
    """

    place: str
    caller: str
    what: str
    value: str
    sure: int
    count: int = 1


_reads: dict[tuple[str, str, str, int], Read] = {}


def place() -> tuple[str, str]:
    """The innermost line outside of torch and of this package, and the innermost one of no library."""
    return spot()[:2]


Spot = tuple[str, str, int]


def spot() -> Spot:
    """The place, and which of its reads this is: a line may read several values."""
    return _spot(*_frames())


def _spot(inner: Optional[types.FrameType], caller: Optional[types.FrameType]) -> Spot:
    return _line(inner), _line(caller or inner), -1 if inner is None else inner.f_lasti


def use() -> Use:
    """What the script does with a value that its current line reads."""
    inner, caller = _frames()
    key = _spot(inner, caller)
    if key not in _uses:
        _uses[key] = use_at(inner)
    return _uses[key]


_uses: dict[Spot, Use] = {}


def _line(frame: Optional[types.FrameType]) -> str:
    return '' if frame is None else f'{frame.f_code.co_filename}:{frame.f_lineno}'


def _frames() -> tuple[Optional[types.FrameType], Optional[types.FrameType]]:
    """Those of :func:`place`; None where there is none."""
    import torch

    own = (_HERE, str(Path(torch.__file__).parent), '<frozen', os.path.dirname(os.__file__) + os.sep + 'contextlib')
    inner, frame = None, sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(own):
            inner = inner or frame
            if not file.startswith(_LIBRARIES):
                return inner, frame
        frame = frame.f_back  # type: ignore[assignment]
    return inner, None


def is_by_torch() -> bool:
    """Whether torch reads for itself, as its optimizers and distributions do: neither a loop of the script nor its checks."""
    inner, _ = _frames()
    frame = sys._getframe(1)
    while frame is not None and frame is not inner:
        if frame.f_code.co_filename.startswith(_for_itself()):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


@functools.cache
def _for_itself() -> tuple[str, ...]:
    import torch

    return tuple(str(Path(torch.__file__).parent / name) + os.sep for name in ('amp', 'distributions', 'nn', 'optim'))


def lines() -> list[str]:
    """Each line of the script and its libraries that is on its way, the innermost first, its file from the root on."""
    found = []
    frame = sys._getframe(1)
    while frame is not None:
        found.append(f'{os.path.abspath(frame.f_code.co_filename)}:{frame.f_lineno}')
        frame = frame.f_back  # type: ignore[assignment]
    return found


def times(what: str, sure: int) -> int:
    """How often this line has read a value of this kind."""
    before = _reads.get((*place(), what, sure))
    return 0 if before is None else before.count


def note(what: str, value: Callable[[int], Any], sure: int) -> Any:
    """Note a read by the script; ``value`` is called with how often the same line has read before.

    Returns the value.
    """
    inner, caller = place()
    if not inner:  # a thread of the backward pass
        return value(0)
    key = (inner, caller, what, sure)
    before = _reads.get(key)
    if before is not None:
        _reads[key] = dataclasses.replace(before, count=before.count + 1)
        return value(before.count)
    given = value(0)
    if not _reads:
        atexit.register(_write_all)
    if what == NUMBER and sure == _GUESSED and use().decides:
        what = BRANCH
    _reads[key] = Read(inner, caller, what, _short(given), sure)
    _write(_reads[key])
    return given


def note_at(where: tuple[str, str], what: str, value: Any, sure: int) -> None:
    """Note a read of before, with its place."""
    _write(Read(*where, what, _short(value), sure))


@functools.cache
def note_kept(place: str) -> None:
    """Note once that a mask keeps the part that the user gave for this place."""
    _write_line(f'{_KEPT}{place}')


def kept_in(lines: list[str]) -> list[str]:
    """The places in the lines of a file of notes whose masks kept what the user gave.

    >>> kept_in(['kept: train.py:41', 'assumed: masks keep all'])
    ['train.py:41']
    """
    return [line.removeprefix(_KEPT) for line in lines if line.startswith(_KEPT)]


def _short(value: Any) -> str:
    text = ' '.join(f'{value:.4g}'.split()) if isinstance(value, float) else ' '.join(str(value).split())
    return text if len(text) <= 40 else text[:39] + '…'


def _write(read: Read) -> None:
    _write_line(f'{LINE}{json.dumps({"process": os.getpid(), **dataclasses.asdict(read)})}')


def _write_line(line: str) -> None:
    path = os.environ.get(_NOTES_VARIABLE)
    if path:
        with open(path, 'a') as file:
            file.write(f'{line}\n')


def _write_all() -> None:
    for read in _reads.values():
        if read.count > 1:
            _write(read)


def parsed(lines: list[str]) -> list[Read]:
    """The reads in the lines of a file of notes: of each the last count, of all processes together."""
    latest: dict[tuple[Any, ...], Read] = {}
    for line in lines:
        if line.startswith(LINE):
            fields = json.loads(line.removeprefix(LINE))
            process = fields.pop('process')
            read = Read(**fields)
            latest[process, read.place, read.caller, read.what, read.sure] = read
    summed: dict[tuple[Any, ...], Read] = {}
    for (_, *key), read in latest.items():
        before = summed.get(tuple(key))
        summed[tuple(key)] = read if before is None else dataclasses.replace(read, count=before.count + read.count)
    return sorted(summed.values(), key=lambda read: (-read.sure, -read.count, read.place))
