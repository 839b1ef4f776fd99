"""Whether this process runs on a simulated GPU: what it records must say so. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Optional

#: Tells the runtime what it simulates: ``name=value`` with ``;`` in between.
VARIABLE = 'SIMULATED_GPU'
#: What else to call at the start of a simulated process: ``module:function``.
AT_START_VARIABLE = 'SIMULATED_GPU_AT_START'


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
