"""Packages that a simulated process can import though they are not installed, since they can only be built with a GPU.

They allocate what the real package allocates, and compute nothing. The folder ``modules`` stands last on the path of a
simulated process, so that an installed package wins; its modules only give the names.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

#: ``0`` leaves them out.
VARIABLE = 'SIMULATED_GPU_STAND_INS'
_MODULES = Path(__file__).with_name('modules')
#: The packages, by the name of their module.
_PACKAGES = ('flash_attn',)


def offer() -> None:
    """Put them last on this process's path, unless one of them is installed or they are not wanted."""
    if os.environ.get(VARIABLE) != '0' and not any(map(importlib.util.find_spec, _PACKAGES)):
        sys.path.append(str(_MODULES))
