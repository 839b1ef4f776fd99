"""The error behind an error: what another process, such as a DataLoader worker, raised and sent on as text.

torch raises such an error again with the other process's traceback as its message. The line that raises it is torch's.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Optional

_TRACEBACK = 'Traceback (most recent call last):'
_FRAME = re.compile(r'  File "(.+)", line (\d+), in (.+)')
#: How torch says which process it was: ``Caught KeyError in DataLoader worker process 1.``
_PROCESS = re.compile(r'Caught \w+ (in .+?)\.?$', re.MULTILINE)


@dataclass(frozen=True)
class SentError:
    """An error that another process sent.

    Args:
        text (str): its type and its message, as Python prints them.
        process (str): ``'in DataLoader worker process 1'``; ``''`` if that is not known.
        frames (list[tuple[str, int, str]]): the file, the line and the function of each frame, outermost first.
    """

    text: str
    process: str
    frames: list[tuple[str, int, str]]


def sent_error(error: BaseException) -> Optional[SentError]:
    """The error whose traceback is the message of another one; None if the message has no traceback.

    >>> message = '''Caught ValueError in DataLoader worker process 1.
    ... Original Traceback (most recent call last):
    ...   File "data.py", line 5, in __getitem__
    ...     raise ValueError('a bad row')
    ... ValueError: a bad row'''
    >>> sent_error(ValueError(message)).text
    'ValueError: a bad row'
    """
    before, found, trace = str(error).rpartition(_TRACEBACK)
    if not found:
        return None
    lines = trace.strip('\n').splitlines()
    matches = {number: match for number, line in enumerate(lines) if (match := _FRAME.fullmatch(line)) is not None}
    frames = [(match[1], int(match[2]), match[3]) for match in matches.values()]
    after = lines[max(matches, default=-1) + 1 :]  # the source line, marks below it, then the error
    text = ' '.join(itertools.dropwhile(lambda line: line.startswith('  '), after)).strip()
    process = _PROCESS.search(before)
    return SentError(text, process[1] if process else '', frames) if text and frames else None
