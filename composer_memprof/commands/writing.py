"""Files that a command will write: what cannot be written is said before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import typer

from composer_memprof.artifacts.writing.writable import why_no_file
from composer_memprof.messages import printable
from composer_memprof.terminal import say


def refuse_unwritable(option: str, path: Optional[Path], advice: str = '') -> None:
    """End the command in one line if no file can be written there; None is no file. Missing folders are made later."""
    why_not = '' if path is None else why_no_file(path)
    if why_not:
        say(f'{option}={printable(str(path))} cannot be written: {why_not}{advice and f"; {advice}"}')
        raise typer.Exit(2)
