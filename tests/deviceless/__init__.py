"""torch's own CUDA allocator where there is no GPU, over a stand-in of CUDA's runtime (``runtime.c``).

python -m tests.deviceless -m pytest -m gpu
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import torch

#: What the stand-in calls itself.
NAME = 'deviceless'


class Unavailable(Exception):
    """Why the stand-in cannot be had here."""


def is_on() -> bool:
    """Whether this process runs on it."""
    return torch.cuda.is_available() and torch.cuda.get_device_name() == NAME


def environment(folder: Path) -> dict[str, str]:
    """This process's environment, with what a Python started in it needs. Builds the stand-in in ``folder``.

    Raises:
        Unavailable: without a C compiler, or with a torch that is not built for CUDA.
    """
    compiler = shutil.which('cc')
    if compiler is None:
        raise Unavailable('there is no C compiler')
    packages = Path(torch.__file__).parent.parent
    headers = {found.parent for found in packages.glob('nvidia/*/include/driver_types.h')}
    if torch.version.cuda is None or not headers:
        raise Unavailable(f"torch {torch.__version__} has come without NVIDIA's packages")
    # The name under which torch looks for the driver.
    library = folder / 'libcuda.so.1'
    source = Path(__file__).with_name('runtime.c')
    # Those of CUDA 12 lack some that triton brings.
    folders = [f'-I{folder}' for folder in (*headers, packages / 'triton/backends/nvidia/include')]
    arguments = ['-shared', '-fPIC', '-O1', '-w', *folders, f'-Wl,-soname,{library.name}', '-lpthread']
    built = subprocess.run([compiler, *arguments, '-o', library, source], capture_output=True, text=True, check=False)
    if built.returncode:
        raise Unavailable(f'{source.name} does not compile: {built.stderr.strip()[:500]}')
    return {**os.environ, 'LD_PRELOAD': ':'.join(filter(None, [str(library), os.environ.get('LD_PRELOAD')]))}
