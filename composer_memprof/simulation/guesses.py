"""The values that a simulated command read, were guessed, and could change its figures: in words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from composer_memprof.simulated_gpu.values.reads import BRANCH, END, ENDLESS, LOOP, SHAPE, Read

#: Lines of sizes and branches in a verdict.
_MOST_LINES = 6
_GUESSED = 2
#: Those that are named first change a figure most.
_DECISIVE = (ENDLESS, LOOP, SHAPE, BRANCH)


def guesses(reads: Iterable[Read]) -> list[str]:
    """A line for each loop that a guess ended, and a few others: sizes first. A number that is only printed decides nothing.

    >>> guesses([Read('/home/me/train.py:41', '/home/me/train.py:41', 'shape', '64 of 64', 2, 12)])
    ['Guessed: train.py:41 kept 64 of 64 elements, 12 times; --kept train.py:41=PART says which part']
    """
    decisive = [read for read in reads if read.sure == _GUESSED and read.what in _DECISIVE]
    decisive.sort(key=lambda read: (_DECISIVE.index(read.what), -read.count))
    ends = sum(read.what in (ENDLESS, LOOP) for read in decisive)
    shown = decisive[: ends + _MOST_LINES]
    lines = [f'Guessed: {_sentence(read)}' for read in shown]
    if len(decisive) > len(shown):
        lines.append(f'Guessed: {len(decisive) - len(shown)} more values that could change the figures (--json)')
    return lines


def _sentence(read: Read) -> str:
    place = _short(read.place)
    where = place if read.caller == read.place else f'{place}, called from {_short(read.caller)},'
    times = '' if read.count == 1 else f', {read.count} times'
    if ' of ' in read.value:
        return f'{where} kept {read.value} elements{times}; --kept {place}=PART says which part'
    if read.what == ENDLESS:
        return f'{where} read {read.value}{times}, and its loop went on; how often it runs is not known'
    if read.what == LOOP:
        return f'{where} read {read.value}{times}, so that a loop could end; how often it runs is not known'
    return f'{where} read {read.value}{times}; a {read.what} may follow from it'


def endless_loop(reads: Iterable[Read]) -> str:
    """A clause that names the loop which no answer ended; ``''`` if each loop ended.

    >>> endless_loop([Read('/home/me/train.py:41', '/home/me/train.py:41', 'endless', '37 other answers', 2)])
    'no answer ends the loop at train.py:41, which waits for a value that is not known here'
    """
    found = next((_short(read.place) for read in reads if read.what == ENDLESS), '')
    return found and f'no answer ends the loop at {found}, which waits for a value that is not known here'


def guess_before_end(reads: Iterable[Read]) -> str:
    """Where a guess was read after the last step by which a loop may have ended; ``''`` if there was none."""
    return next((_short(read.place) for read in reads if read.what == END), '')


def _short(place: str) -> str:
    return os.path.basename(place)


def kept_parts(texts: Sequence[str], values: bool) -> tuple[float, dict[str, float]]:
    """What ``--kept`` says of all masks, and of those of single lines.

    Args:
        values: single lines are told apart, which ``--no-values`` does not.

    >>> kept_parts(['0.5', 'train.py:41=0.125'], values=True)
    (0.5, {'train.py:41': 0.125})

    Raises:
        ValueError: if one is neither a part from 0 to 1 nor ``FILE:LINE=PART``, or the latter without ``values``.
    """
    everywhere, at = 1.0, {}
    for text in texts:
        place, _, part = text.rpartition('=')
        file, _, line = place.rpartition(':')
        if not _is_part(part) or (place and not (file and line.isdigit())) or ',' in place or ';' in place:
            raise ValueError(f'--kept={text} must be a part from 0 to 1, or FILE:LINE=PART such as train.py:41=0.125')
        if place and not values:
            raise ValueError(f'--kept={text} is for one line, which --no-values does not tell apart')
        if place:
            at[_in_full(file, line)] = float(part)
        else:
            everywhere = float(part)
    return everywhere, at


def _in_full(file: str, line: str) -> str:
    """The place, its file from the root on if it is given relative to this folder."""
    beside = file.startswith((os.curdir + os.sep, os.pardir + os.sep, '~'))
    return f'{os.path.abspath(os.path.expanduser(file)) if beside else os.path.normpath(file)}:{line}'


def unused_parts(places: Sequence[str], reads: Iterable[Read]) -> list[str]:
    """A line for each place given with ``--kept`` where no mask was kept, with where masks were.

    >>> unused_parts(['train.py:4'], [Read('/home/me/train.py:41', '', 'shape', '64 of 64', 2)])
    ['--kept train.py:4 changed nothing: no mask was kept there, but in train.py:41']
    """
    masks = dict.fromkeys(_short(read.place) for read in reads if ' of ' in read.value)
    where = f', but in {", ".join(list(masks)[:_MOST_LINES])}' if masks else ''
    return [f'--kept {place} changed nothing: no mask was kept there{where}' for place in places]


def _is_part(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False
