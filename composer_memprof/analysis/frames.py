"""Whose code a call stack runs through: the user's own frames first, torch's folded."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from composer_memprof.analysis.snapshot import Frame, Stack

#: Packages that call the user's code, or are called by all of it.
_FRAMEWORKS = ('torch', 'composer', 'torchmetrics', 'typer', 'click')
#: This project's own runner, which calls the user's code as well.
_RUNNER = ('composer_memprof/cli.py', 'composer_memprof/runner.py')
_INSTALLED = ('site-packages/', 'dist-packages/')
#: On a GPU the backward pass runs on torch's own threads, which have no Python frames.
_BACKWARD = Frame('torch', 0, 'backward (no Python frames)')
_SHOWN = 6


@dataclass(frozen=True)
class Place:
    """Where memory was asked for: the user's own frames where there are any, innermost first, and how many are folded."""

    frames: tuple[Frame, ...]
    folded: int


def places(stacks: Sequence[Stack]) -> tuple[list[Place], np.ndarray]:
    """The distinct places of stacks, and for each stack the index of its place, int32. 0 is that of no stack at all."""
    found: dict[tuple[Frame, ...], int] = {(): 0}
    folded = [0]
    index = np.zeros(len(stacks), dtype=np.int32)
    for number, stack in enumerate(stacks):
        frames = own_frames(stack)
        place = index[number] = found.setdefault(frames, len(folded))
        if place == len(folded):
            folded.append(len(stack) - sum(frame in frames for frame in stack))
    return [Place(frames, count) for frames, count in zip(found, folded)], index


def own_frames(stack: Stack) -> tuple[Frame, ...]:
    """The user's own frames, innermost first, at most six; failing those, of a library other than the frameworks."""
    python = [frame for frame in stack if frame.filename.endswith('.py') and not _is_standard_library(frame.filename)]
    own = [frame for frame in python if not is_installed(frame.filename)]
    chosen = [frame for frame in own or python if not _is_framework(frame.filename)] or own or python
    if chosen:
        return tuple(chosen[:_SHOWN])
    if any('autograd' in frame.name for frame in stack):
        return (_BACKWARD,)
    return stack[:3]


@functools.lru_cache(maxsize=4096)
def is_installed(filename: str) -> bool:
    return any(place in filename for place in _INSTALLED)


@functools.lru_cache(maxsize=4096)
def _is_standard_library(filename: str) -> bool:
    return '/lib/python3' in filename and not is_installed(filename)


@functools.lru_cache(maxsize=4096)
def _is_framework(filename: str) -> bool:
    """Whether a file, by its path as such or below the packages' folder, belongs to one of the frameworks."""
    if filename.endswith(_RUNNER):
        return True
    for place in _INSTALLED:
        filename = filename.rpartition(place)[2]
    return filename.startswith(tuple(f'{name}/' for name in _FRAMEWORKS))
