"""The file of a trace that the user named: compressed if its name says so, and never half there. Imports no torch."""

from __future__ import annotations

import shutil
from pathlib import Path

from composer_memprof.artifacts.naming.compression import codec_of, compress_file
from composer_memprof.artifacts.writing.temporary_files import replaced_whole
from composer_memprof.artifacts.writing.writable import why_no_folder


def check_trace_file(path: Path) -> None:
    """
    Raises:
        ValueError: if no file can be written there.
    """
    if path.is_dir() or not path.parent.is_dir() or why_no_folder(path.parent):
        raise ValueError(f'--trace={str(path)!r} must be a file in a folder that exists and can be written to')


def put_trace(written: Path, path: Path) -> None:
    """Put a process's trace where the user wants it, in the place of a file that is there."""
    codec = codec_of(path.name)
    with replaced_whole(path) as unfinished:
        if codec is None:
            shutil.copyfile(written, unfinished)
        else:
            compress_file(written, unfinished, codec)
