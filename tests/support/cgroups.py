"""A memory cgroup for a test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """The file with the limit of a memory cgroup of our own, where that is permitted."""
    for root, name in (('/sys/fs/cgroup/memory', 'memory.limit_in_bytes'), ('/sys/fs/cgroup', 'memory.max')):
        folder = Path(root, f'memprof-{uuid.uuid4().hex}')
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / name).exists():
            yield folder / name
            folder.rmdir()
            return
        folder.rmdir()
    pytest.skip('no memory cgroup can be made here')
