"""Runs code in a Python process of its own."""

from __future__ import annotations

import sys

from tests.conftest import child_environment
from tests.support.processes import warm_python

#: The beginning of code that imports the package anew, after what the code does to torch and Composer.
PACKAGE_ANEW = """
import sys
for name in [name for name in sys.modules if name.partition('.')[0] in ('composer_memprof', 'tests')]:
    del sys.modules[name]
"""


def run_python(code: str) -> None:
    """Run ``code`` in a process that need not import torch and Composer first. It must end without an error."""
    run = warm_python.run(
        [sys.executable, '-c', code], capture_output=True, text=True, timeout=300, env=child_environment()
    )
    assert run.returncode == 0, run.stderr
