"""Whose code a call stack runs through: the user's own frames first, torch's folded."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.snapshot.model import Frame, Stack

#: Packages that call the user's code, or are called by all of it.
_FRAMEWORKS = ('torch', 'composer', 'torchmetrics', 'typer', 'click')
#: What of this project calls the user's code as well: its runner, and its mark on a function.
_RUNNER = ('composer_memprof/cli.py', 'composer_memprof/runner.py', 'composer_memprof/recorders/functions/marked.py')
_INSTALLED = ('site-packages/', 'dist-packages/')
#: On a GPU the backward pass runs on torch's own threads, which have no Python frames.
_BACKWARD = Frame('torch', 0, 'backward (no Python frames)')
#: Of torch, what a line calls by name, or by calling a module: their frames tell nothing that the line does not.
_OPERATORS = ('torch/nn/', 'torch/functional.py', 'torch/_tensor.py', 'torch/_ops.py', 'torch/_jit_internal.py')
_SHOWN = 6


@dataclass(frozen=True)
class Place:
    """Where memory was asked for: the user's own frames where there are any, innermost first, and how many are folded.

    ``within`` is the frame of a library, innermost, that asked on behalf of these, where they do not tell themselves.
    """

    frames: tuple[Frame, ...]
    within: Optional[Frame]
    folded: int


def places(stacks: Sequence[Stack]) -> tuple[list[Place], np.ndarray]:
    """The distinct places of stacks, and for each stack the index of its place, int32. 0 is that of no stack at all."""
    found: dict[tuple[tuple[Frame, ...], Optional[Frame]], int] = {((), None): 0}
    folded = [0]
    index = np.zeros(len(stacks), dtype=np.int32)
    for number, stack in enumerate(stacks):
        frames = own_frames(stack)
        within = within_library(stack, frames)
        place = index[number] = found.setdefault((frames, within), len(folded))
        if place == len(folded):
            folded.append(len(stack) - sum(frame in frames or frame is within for frame in stack))
    return [Place(*key, count) for key, count in zip(found, folded)], index


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


def within_library(stack: Stack, own: tuple[Frame, ...]) -> Optional[Frame]:
    """The innermost frame of torch, or of another library, if the innermost own frame does not tell what asked.

    A line that steps an optimizer, starts backward or a whole training asks for many things; one that calls torch's
    functions and modules, only for what they give.
    """
    if own == (_BACKWARD,):
        nodes = (frame for frame in stack if frame.name.startswith('torch::autograd::'))
        node = next((frame for frame in nodes if 'VariableType' not in frame.name), None)
        return None if node is None else Frame(node.filename, node.line, node.name.partition('(')[0])
    for frame in stack:
        if own and frame is own[0]:
            return None
        if _does_more(frame):
            return frame
    return None


def _does_more(frame: Frame) -> bool:
    file = frame.filename
    if not file.endswith('.py') or _is_standard_library(file):
        return False
    return frame.name == 'backward' or not _is_operator(file)


@functools.lru_cache(maxsize=4096)
def is_own(filename: str) -> bool:
    """Whether a file is the user's, by its path."""
    return (
        filename.endswith('.py')
        and not _is_standard_library(filename)
        and not is_installed(filename)
        and not _is_framework(filename)
    )


@functools.lru_cache(maxsize=4096)
def is_installed(filename: str) -> bool:
    return any(place in filename for place in _INSTALLED)


@functools.lru_cache(maxsize=4096)
def _is_standard_library(filename: str) -> bool:
    return '/lib/python3' in filename and not is_installed(filename)


@functools.lru_cache(maxsize=4096)
def _is_framework(filename: str) -> bool:
    """Whether a file, by its path as such or below the packages' folder, belongs to one of the frameworks."""
    return filename.endswith(_RUNNER) or in_package(filename).startswith(tuple(f'{name}/' for name in _FRAMEWORKS))


@functools.lru_cache(maxsize=4096)
def _is_operator(filename: str) -> bool:
    return in_package(filename).startswith(_OPERATORS)


def in_package(filename: str) -> str:
    """A path below the packages' folder: ``torch/optim/adamw.py``."""
    for place in _INSTALLED:
        filename = filename.rpartition(place)[2]
    return filename
