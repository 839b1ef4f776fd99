"""Whether a run goes on: whether a process of it, here or on another machine, still writes a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from composer_memprof.artifacts.reading.attempts import read_attempts
from composer_memprof.artifacts.reading.locks import locked
from composer_memprof.artifacts.reading.manifest import find_manifests
from composer_memprof.artifacts.reading.open_files import writers_of


def is_written(manifest: Path) -> Optional[bool]:
    """True if a run writes the manifest, False if none does; None if nobody can tell, or it can't be read.

    The lock alone does not tell: a push has it too, and a child that writes the last files of a run that was killed.
    """
    try:
        attempts = read_attempts(manifest)
        last = attempts[-1] if attempts else None
        if last is not None and last.end is not None:
            return False
        if last is not None and last.is_running_here():
            return True
        with locked(manifest) as free:
            if free or free is None:
                return False if free else None
    except OSError:
        return None
    # Somebody has it. On the attempt's own machine that is a child of the dead process, unless the process can't be seen.
    return last is None or not last.is_of_this_host or not writers_of(manifest)


def goes_on(folder: Path) -> Optional[bool]:
    """True if a run writes a manifest in the folder, False if none does; None if there is no manifest yet."""
    manifests = find_manifests(folder) if folder.is_dir() else []
    return any(is_written(path) for path in manifests) if manifests else None
