"""Closes what earlier attempts of a run have left open in a manifest, because their processes were killed."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from composer_memprof.artifacts.reading.attempts import Attempt, read_attempts
from composer_memprof.artifacts.reading.containment import inside
from composer_memprof.artifacts.reading.manifest import Entry, Manifest, is_unfinished, read_manifest
from composer_memprof.artifacts.writing.disk import sync_and_digest
from composer_memprof.artifacts.writing.temporary_files import clear_unfinished


def close_earlier(manifest: Manifest) -> None:
    """List attempts that were killed as ``killed``, and the files that they left open as ``saved``.

    Leaves everything alone if one of the attempts may still run. Reads the files, so call it on a worker thread.

    Args:
        manifest (Manifest): that this process has opened.

    Raises:
        OSError: if the manifest can't be read or written.
    """
    left = [each for each in read_attempts(manifest.path) if each.end is None and not each.is_own]
    if not all(_was_killed(attempt, manifest) for attempt in left):
        return
    for attempt in left:
        manifest.append_attempt(replace(attempt, end='killed'))
    if not left and not manifest.was_alone:
        return
    clear_unfinished(manifest.path)
    begin = manifest.written_before
    replaced = {entry.path for entry in read_manifest(manifest.path, begin=begin)}  # with ``overwrite``
    for entry in read_manifest(manifest.path, end=begin):
        if entry.status == 'open' and not is_unfinished(entry) and entry.path not in replaced:
            manifest.append(_closed(entry, manifest))


def _was_killed(attempt: Attempt, manifest: Manifest) -> bool:
    return not attempt.is_running_here() if attempt.is_of_this_host else manifest.was_alone


def _closed(entry: Entry, manifest: Manifest) -> Entry:
    found = _size_and_sha256(entry, manifest)
    if found is None:
        return replace(entry, status='removed')
    return replace(entry, status='saved', bytes=found[0], sha256=found[1])


def _size_and_sha256(entry: Entry, manifest: Manifest) -> Optional[tuple[int, str]]:
    try:
        return sync_and_digest(inside(manifest.path.parent, entry.path))
    except (OSError, ValueError):
        return None
