"""What a run has left in its folder, checked against what its manifests say."""

from __future__ import annotations

import json
from pathlib import Path

from composer_memprof.artifacts.reading.manifest import find_manifests, read_manifest
from composer_memprof.artifacts.writing.disk import digest


def what_is_wrong(folder: Path, *, flushed: bool = True) -> list[str]:
    """A line for each torn or false line, and for each file that no manifest knows.

    Args:
        folder (Path): of the run.
        flushed (bool): the run could end its work, so that no file is open.
    """
    wrong = []
    listed = set()
    for manifest in find_manifests(folder):
        text = manifest.read_bytes()
        lines = text.splitlines()
        for line in lines:
            try:
                json.loads(line)
            except ValueError:
                wrong.append(f'torn line: {line!r}')
        if text and not text.endswith(b'\n'):
            wrong.append(f'no end of line: {manifest.name}')
        for entry in read_manifest(manifest):
            path = manifest.parent / entry.path
            listed.add(path)
            if entry.status in ('saved', 'uploaded'):
                if not path.exists():
                    wrong.append(f'saved and not there: {entry.path}')
                elif digest(path) != (entry.bytes, entry.sha256):
                    wrong.append(f'saved and different: {entry.path}')
            elif entry.status == 'open' and flushed:
                wrong.append(f'still open: {entry.kind} {entry.path}')
            elif entry.status == 'removed' and path.exists():
                wrong.append(f'removed and there: {entry.path}')
    folders = {manifest.parent for manifest in find_manifests(folder)}
    for each in sorted(folders):
        for path in each.rglob('*'):
            if path.is_file() and path not in listed and not path.name.endswith('.manifest.jsonl'):
                wrong.append(f'{"hidden" if path.name.startswith(".") else "not listed"}: {path.name}')
    return wrong
