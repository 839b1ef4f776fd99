"""The seconds and the peak of memory of one of the package's commands, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

_ROOT = Path(__file__).parents[2]
#: The peak is VmHWM, which begins anew when a program starts. What ``getrusage`` gives for a child counts its parent's,
#: which is right for the command's own children alone.
_CHILD = r"""
import pathlib, re, resource, runpy, sys
try:
    runpy.run_module('composer_memprof', run_name='__main__', alter_sys=True)
finally:
    status = pathlib.Path('/proc/self/status').read_text()
    own = int(re.search(r'VmHWM:\s+(\d+) kB', status)[1])
    print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss), file=sys.stderr)
"""


def measure(*arguments: str) -> tuple[float, float]:
    """Run ``composer-memprof`` with the arguments; returns the seconds, and the GB of the process's peak."""
    began = time.perf_counter()
    command = [sys.executable, '-c', _CHILD, *arguments]
    ran = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=_ROOT, text=True, check=False)
    seconds = time.perf_counter() - began
    assert ran.returncode in (0, 3), f'{ran.stderr}\nexit code {ran.returncode}; a plan exits with 3 if it does not fit'
    return seconds, int(ran.stderr.split()[-1]) * 1024 / 1e9
