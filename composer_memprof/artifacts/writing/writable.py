"""Whether a file or a folder can be written, asked before the work whose result goes there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def why_no_file(path: Path) -> str:
    """Why no file can be written to ``path``, in a clause; ``''`` if one can. Missing folders count as made by the writer.

    Nothing is left behind, and a file that is there stays as it is.

    >>> why_no_file(Path('/dev')), why_no_file(Path('/dev/null'))
    ('it is a folder', '')
    """
    try:
        if path.is_dir():
            return 'it is a folder'
        if path.is_file():
            os.close(os.open(path, os.O_WRONLY))
        elif not path.exists():
            return why_no_folder(path.parent)
    except OSError as error:
        return error.strerror or str(error)
    return ''


def why_no_folder(path: Path) -> str:
    """Why no file can be made in the folder ``path``, in a clause; ``''`` if one can. Missing folders count as made.

    >>> why_no_folder(Path('/dev/null/runs'))
    '/dev/null is not a folder'
    """
    try:
        nearest = next(each for each in (path, *path.absolute().parents) if each.exists())
        if not nearest.is_dir():
            return f'{nearest} is not a folder'
        with tempfile.TemporaryFile(dir=nearest):
            return ''
    except OSError as error:
        return f'{nearest}: {error.strerror or error}'
