"""Places in the code, in words."""

from __future__ import annotations

from pathlib import PurePath

from composer_memprof.analysis.memory.frames import in_package
from composer_memprof.analysis.snapshot.model import Frame


def within_words(frame: Frame) -> str:
    """Of a library's frame that asked on behalf of the user's own: ``(in torch: torch/optim/adamw.py:120 step)``."""
    if not frame.line:
        return f'(in torch: {frame.name})'
    file = PurePath(in_package(frame.filename))
    return f'(in {file.parts[0] if len(file.parts) > 1 else file.stem}: {file}:{frame.line} {frame.name})'
