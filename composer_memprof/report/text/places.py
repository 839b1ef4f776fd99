"""Frames of the code as text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

from composer_memprof.analysis.memory.blocks.frames import in_package
from composer_memprof.analysis.snapshot.model import Frame


def library_frame_text(frame: Frame) -> str:
    """The library's frame that allocated for the user's own: ``(in torch: torch/optim/adamw.py:120 step)``."""
    if not frame.filename.endswith('.py'):
        return f'(in torch: {frame.name})'
    file = PurePath(in_package(frame.filename))
    within = replace(frame, filename=str(file))
    return f'(in {file.parts[0] if len(file.parts) > 1 else file.stem}: {within})'
