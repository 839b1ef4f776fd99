"""Whether this process runs on a simulated GPU: what it records must say so. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Optional

#: Tells the runtime what it simulates: ``name=value`` with ``;`` in between.
VARIABLE = 'SIMULATED_GPU'
#: What else to call at the start of a simulated process: ``module:function``.
AT_START_VARIABLE = 'SIMULATED_GPU_AT_START'
#: The file of notes that simulated processes write, a line each: what was assumed, what is not simulated, what was read.
NOTES_VARIABLE = 'SIMULATED_GPU_NOTES'


def figures() -> dict[str, str]:
    """What this process simulates, by name; empty on real devices."""
    return dict(part.split('=', 1) for part in os.environ.get(VARIABLE, '').split(';') if '=' in part)


def as_variable(figures: Mapping[str, object]) -> str:
    """The variable's value for these figures.

    >>> as_variable({'key': 't4', 'devices': 2})
    'key=t4;devices=2'
    """
    return ';'.join(f'{name}={value}' for name, value in figures.items())


def simulated_device() -> Optional[str]:
    """The key of the GPU that this process runs on if it is a simulated one, else None.

    >>> simulated_device() is None
    True
    """
    return figures().get('key')


def notes_in(path: Path) -> list[str]:
    """The different lines of a file of notes, in order; none if nobody wrote one."""
    return list(dict.fromkeys(path.read_text().splitlines())) if path.exists() else []


def assumed_in(notes: Iterable[str]) -> list[str]:
    """What was assumed, one sentence each.

    >>> assumed_in(['assumed: masks keep all', 'not simulated: cusparseLtInit'])
    ['masks keep all']
    """
    start = 'assumed: '
    return [line.removeprefix(start) for line in notes if line.startswith(start)]
