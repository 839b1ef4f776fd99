"""Temporary folders: one that a killed command has left goes with the next command, one in use stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from composer_memprof.artifacts.writing.temporary_folders import temporary_folder

HOLDS = """
import time
from composer_memprof.artifacts.writing.temporary_folders import temporary_folder
with temporary_folder('held') as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


def test_the_folder_of_a_killed_command_goes_with_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    environment = {**os.environ, 'TMPDIR': str(tmp_path)}
    command = [sys.executable, '-c', HOLDS]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert holder.stdout is not None
    folder = Path(holder.stdout.readline().strip())
    assert folder.parent == tmp_path
    (folder / 'events').write_text('x')
    (tmp_path / 'composer-memprof.of-somebody').symlink_to('/etc')
    for each in tmp_path.iterdir():
        os.utime(each, (1, 1), follow_symlinks=False)
    with temporary_folder('next') as own:
        assert own.is_dir() and folder.is_dir(), 'it is in use'
    assert not own.exists()
    holder.send_signal(signal.SIGKILL)
    holder.wait(30)
    os.utime(folder)
    with temporary_folder('next'):
        assert folder.is_dir(), 'its process may be about to lock it'
    os.utime(folder, (1, 1))
    with temporary_folder('next'):
        assert not folder.exists()
    assert (tmp_path / 'composer-memprof.of-somebody').is_symlink()
