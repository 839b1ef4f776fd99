"""Whether this process runs on a simulated GPU: what it records must say so. Needs no torch."""

from __future__ import annotations

import os
from typing import Optional

#: Tells the runtime what it simulates: ``name=value`` with ``;`` in between.
VARIABLE = 'SIMULATED_GPU'


def simulated_device() -> Optional[str]:
    """The key of the GPU that this process runs on if it is a simulated one, else None.

    >>> simulated_device() is None
    True
    """
    figures = os.environ.get(VARIABLE, '')
    return dict(part.split('=', 1) for part in figures.split(';') if '=' in part).get('key')
