"""The seconds and the peak of memory of one of the package's commands, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

_ROOT = Path(__file__).parents[2]
#: A small process around the command: the peak that ``getrusage`` gives for a child counts its parent's too. A command may
#: replace its process by another program, and what it forks counts as well.
_AROUND = """
import resource, subprocess, sys
code = subprocess.run([sys.executable, '-m', 'composer_memprof', *sys.argv[1:]]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def measure(*arguments: str) -> tuple[float, float]:
    """Run ``composer-memprof`` with the arguments; returns the seconds, and the GB of the process's peak."""
    began = time.perf_counter()
    command = [sys.executable, '-c', _AROUND, *arguments]
    ran = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=_ROOT, text=True, check=False)
    seconds = time.perf_counter() - began
    assert ran.returncode in (0, 3), f'{ran.stderr}\nexit code {ran.returncode}; a plan exits with 3 if it does not fit'
    return seconds, int(ran.stderr.split()[-1]) * 1024 / 1e9
