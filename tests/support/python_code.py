"""Runs code in a Python process of its own."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import child_environment


def run_python(code: str) -> None:
    run = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, timeout=300, env=child_environment()
    )
    assert run.returncode == 0, run.stderr
