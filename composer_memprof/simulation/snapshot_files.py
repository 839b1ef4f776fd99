"""The files of a simulated run: its memory snapshot, the page, the summary, and the manifest that lists them.

Without a Trainer and without its packages: a plain script need not import Composer for this.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from composer_memprof.analysis.memory.summary import write_summary
from composer_memprof.analysis.snapshot.loading import read_snapshot
from composer_memprof.artifacts.naming.numbering import counted
from composer_memprof.artifacts.reading.manifest import Entry, append_line
from composer_memprof.artifacts.writing.disk import sync_and_digest
from composer_memprof.recorders.allocations.snapshot_pickle import write_pickle
from composer_memprof.report.html.snapshot.page import write_snapshot_page
from composer_memprof.simulated_gpu.this_process import simulated_device
from composer_memprof.simulation.peaks import UNFINISHED


def write_snapshot_files(snapshot: dict[str, Any], folder: Path, rank: int, steps: int) -> Path:
    """Write the files of a snapshot; returns the snapshot's path. A second process of a rank takes ``.2``."""
    read = read_snapshot(snapshot)
    title = f'simulated: {simulated_device()}, {folder.name}, rank {rank}'
    files: dict[str, tuple[str, Callable[[Path], None]]] = {
        'memory_snapshot': ('.pickle', lambda path: write_pickle(snapshot, path)),
        'memory_snapshot.page': ('.html', lambda path: write_snapshot_page(read, path, title)),
        'memory_snapshot.summary': ('.summary.json', lambda path: write_summary(read, path)),
    }
    stem = _new_stem(folder, f'rank{rank}.memory_snapshot')
    for kind, (suffix, write) in files.items():
        path = folder / f'{stem}{suffix}'
        unfinished = folder / f'{stem}{suffix}{UNFINISHED}'
        write(unfinished)
        size, sha256 = sync_and_digest(unfinished)
        unfinished.replace(path)
        entry = Entry(kind, path.name, None, size, sha256, rank, folder.name, 0, steps, 'saved')
        append_line(folder / f'rank{rank}.manifest.jsonl', entry)
    return folder / f'{stem}.pickle'


def _new_stem(folder: Path, stem: str) -> str:
    """The stem, or with ``.2``, ``.3``, … where another process has it."""
    for number in itertools.count(1):
        name = stem + counted(number)
        claimed = folder / f'{name}.pickle{UNFINISHED}'
        with contextlib.suppress(FileExistsError):
            claimed.touch(exist_ok=False)
            if not (folder / f'{name}.pickle').exists():
                return name
            claimed.unlink()
    raise AssertionError('there is always a next number')
