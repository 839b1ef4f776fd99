"""Temporary files: an artifact is written under a hidden name, and gets its own name once it is whole.

A process that is killed leaves such a file behind. It is listed as ``open`` from its first byte, under a kind that ends
with ``.unfinished``, so that it is known and can be cleared. Imports neither Composer nor torch, as ``push`` does not.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Optional

from composer_memprof.artifacts.manifest import append_line, is_unfinished, read_manifest

#: Nothing else is ever removed, whatever a manifest says.
_NAME = re.compile(r'\.[a-z_]+[a-z_.]*\.(\d+)\.\d+\.tmp')


def temporary_name(kind: str) -> str:
    """A name that this process has not used before."""
    return f'.{kind}.{os.getpid()}.{time.monotonic_ns()}.tmp'


def remove_temporary(path: Path) -> None:
    """Remove a temporary file, and those that its writer or a codec has made next to it."""
    for each in path.parent.glob(f'{path.stem}.*'):
        each.unlink(missing_ok=True)


def clear_unfinished(manifest: Path, of_process: Optional[int] = None) -> list[Path]:
    """Remove temporary files that ``manifest`` lists and whose processes have ended; returns their paths.

    Args:
        manifest (Path): of a run that has ended, unless ``of_process`` is given.
        of_process (int, optional): only those of this process, which has ended.
    """
    cleared = []
    for entry in read_manifest(manifest):
        name = _NAME.fullmatch(entry.path)
        if name is None or not is_unfinished(entry) or entry.status != 'open':
            continue
        pid = int(name[1])
        if (of_process is not None and pid != of_process) or (of_process is None and _is_alive(pid)):
            continue
        path = manifest.parent / entry.path
        remove_temporary(path)
        append_line(manifest, replace(entry, status='removed'), to_disk=False)
        cleared.append(path)
    return cleared


def _is_alive(pid: int) -> bool:
    """Whether a process of this machine has that id. The lock of the manifest tells more, where there are locks."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
