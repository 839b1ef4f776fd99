"""Packages that a simulated process can import though they are not installed, since they can only be built with a GPU.

They allocate what the real package allocates, and compute nothing. The folders in ``modules`` stand last on the path of a
simulated process, so that an installed package wins; their modules only give the names.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

#: ``0`` leaves them out.
VARIABLE = 'SIMULATED_GPU_STAND_INS'
_MODULES = Path(__file__).with_name('modules')
#: The packages: their folder, and the module by which one that is installed is found.
_PACKAGES = {'flash_attn': 'flash_attn', 'flash_attn_3': 'flash_attn_interface', 'kernels': 'kernels'}


def offer() -> None:
    """Put those that are not installed last on this process's path, unless they are not wanted."""
    if os.environ.get(VARIABLE) == '0':
        return
    missing = [folder for folder, module in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    sys.path.extend(str(_MODULES / folder) for folder in missing)
