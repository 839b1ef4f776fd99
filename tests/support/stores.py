"""Stores of artifacts for the tests, and the manifests that they leave."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Optional

from composer.core import Timestamp

from composer_memprof.artifacts.naming.names import Naming, Stamp
from composer_memprof.artifacts.reading.manifest import Entry
from composer_memprof.artifacts.store import ArtifactStore, Part
from composer_memprof.artifacts.uploading.destinations import Sent
from composer_memprof.artifacts.uploading.sent import Comparison
from tests.conftest import child_environment, entries
from tests.support.processes import warm_python

FOLDER = Path('run')


def stamp(batch: int = 4, mark: str = '') -> Stamp:
    return Stamp('my-run', Timestamp(epoch=1, batch=batch), mark)


def text(content: str = 'hello', kind: str = 'thing', suffix: str = '.txt', compress: bool = False) -> Part:
    return Part(kind, suffix, lambda path: path.write_text(content), compress)


def make_store(destination: Any = None, remote: Optional[str] = None, **more: Any) -> ArtifactStore:
    return ArtifactStore(FOLDER, Naming('rank{rank}.{batch}', remote, '.txt'), destination, **more)


class MemoryDestination:
    """A destination that keeps names only. Its uploads can be made to wait or to fail."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self.error: Optional[BaseException] = None

    def accepts_files(self) -> bool:
        return True

    def address_of(self, name: str) -> str:
        return name

    known_address = address_of

    def upload(self, path: Path, name: str) -> Sent:
        assert self.open.wait(30)
        if self.error is not None:
            raise self.error
        assert path.exists(), 'removed before it was uploaded'
        self.names.append(name)
        return Sent(name)

    def compare(self, path: Path, name: str) -> Comparison:
        return Comparison(name in self.names, 'the store does not have it')


# -- manifests and push -------------------------------------------------------------------------------------------


def entry(path: str, status: Any, remote: Optional[str] = None) -> Entry:
    return Entry('thing', path, remote, None, None, 0, 'my-run', 0, 0, status)


def statuses(folder: Path, kind: str = '') -> Counter[str]:
    return Counter(entry.status for entry in entries(folder, kind))


def slow_part(seconds: float) -> Part:
    def write(path: Path) -> None:
        time.sleep(seconds)
        path.write_text('x')

    return Part('thing', '.txt', write)


def run_script(
    script: str, *arguments: str, run: Any = warm_python.run, **settings: Any
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, '-c', textwrap.dedent(script), *arguments]
    return run(command, capture_output=True, text=True, timeout=120, env=child_environment(), **settings)
