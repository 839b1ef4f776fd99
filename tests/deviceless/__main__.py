"""Run Python on the stand-in: ``python -m tests.deviceless -m pytest -m gpu``."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.deviceless import environment

with tempfile.TemporaryDirectory() as folder:
    sys.exit(subprocess.run([sys.executable, *sys.argv[1:]], env=environment(Path(folder)), check=False).returncode)
