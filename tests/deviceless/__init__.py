"""torch's own CUDA allocator without a GPU, on a stand-in for CUDA's runtime (``runtime.c``).

python -m tests.deviceless -m pytest -m gpu
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import torch

#: The name of the stand-in's device.
NAME = 'deviceless'
#: False where CUPTI needs a driver: with 13.0 it gives up and torch profiles without it, with 13.2 it segfaults.
PROFILES = torch.version.cuda is None or tuple(map(int, torch.version.cuda.split('.'))) < (13, 2)


class Unavailable(Exception):
    """The stand-in can't be built here; the message says why."""


def is_on() -> bool:
    """True if this process runs on the stand-in."""
    return torch.cuda.is_available() and torch.cuda.get_device_name() == NAME


def environment(folder: Path) -> dict[str, str]:
    """Build the stand-in in ``folder``; returns this process's environment with what a child process needs to use it.

    Raises:
        Unavailable: without a C compiler, or with a torch that is not built for CUDA.
    """
    compiler = shutil.which('cc')
    if compiler is None:
        raise Unavailable('there is no C compiler')
    packages = Path(torch.__file__).parent.parent
    headers = {found.parent for found in packages.glob('nvidia/*/include/driver_types.h')}
    if torch.version.cuda is None or not headers:
        raise Unavailable(f"torch {torch.__version__} was installed without NVIDIA's packages")
    # torch looks for the driver by this name.
    library = folder / 'libcuda.so.1'
    source = Path(__file__).with_name('runtime.c')
    # CUDA 12's packages lack some headers that triton has.
    folders = [f'-I{folder}' for folder in (*headers, packages / 'triton/backends/nvidia/include')]
    arguments = ['-shared', '-fPIC', '-O1', '-w', *folders, f'-Wl,-soname,{library.name}', '-lpthread']
    built = subprocess.run([compiler, *arguments, '-o', library, source], capture_output=True, text=True, check=False)
    if built.returncode:
        raise Unavailable(f'{source.name} does not compile: {built.stderr.strip()[:500]}')
    return {**os.environ, 'LD_PRELOAD': ':'.join(filter(None, [str(library), os.environ.get('LD_PRELOAD')]))}
