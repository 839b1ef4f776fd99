"""The frames of a call stack that people want to see: the user's own, and the library's that allocated for them."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np

from composer_memprof.analysis.snapshot.model import Frame, Stack

#: Packages that call the user's code, or that all of it calls.
_FRAMEWORKS = ('torch', 'composer', 'torchmetrics', 'typer', 'click')
_PACKAGE = Path(__file__).parents[3]
#: The files of this package, but not the models and data of its examples. A clone's folder may have the package's name.
_OF_PACKAGE = re.compile(
    rf'(^|/){_PACKAGE.name}/({"|".join(sorted(path.stem for path in _PACKAGE.glob("[!.]*") if path.name != "examples"))})(/.*)?\.py$'
)
#: Files that torch.compile and triton generate, wherever their caches are.
_GENERATED = re.compile(
    r'/torchinductor_[^/]*/|/[a-z2-7]{2}/c[a-z2-7]{50,}\.py$|/\.triton/(cache|dump)/[^/]+/[^/]+\.py$'
)
_INSTALLED = ('site-packages/', 'dist-packages/')
#: A GPU's backward pass runs on torch's own threads, which have no Python frames.
_BACKWARD = Frame('torch', 0, 'backward (no Python frames)')
#: Files of torch whose frames add nothing: the line that calls them names the function or module.
_OPERATORS = ('torch/nn/', 'torch/functional.py', 'torch/_tensor.py', 'torch/_ops.py', 'torch/_jit_internal.py')
#: The file of torch that calls a module's forward.
_CALLS_MODULES = 'torch/nn/modules/module.py'
_SHOWN = 6


@dataclass(frozen=True)
class Place:
    """A place in the code that allocates.

    Args:
        frames (tuple[Frame, ...]): innermost first, the user's own if there are any.
        within (Frame, optional): the innermost frame of a library that allocated for them, if they do not show what
            allocated.
        folded (int): number of frames of the stack that are left out.
    """

    frames: tuple[Frame, ...]
    within: Optional[Frame]
    folded: int


def places_of(stacks: Sequence[Stack]) -> tuple[list[Place], np.ndarray]:
    """The distinct places of stacks, and for each stack the index of its place, int32. 0 is the place of no stack."""
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
    """The user's own frames, innermost first, at most six. If there are none, those of libraries but frameworks.

    Code that a compiler generated counts as a library's.
    """
    python = [frame for frame in stack if frame.filename.endswith('.py') and not _is_standard_library(frame.filename)]
    python = [frame for frame in python if not is_generated(frame.filename)] or python
    own = [frame for frame in python if not is_installed(frame.filename)]
    chosen = [frame for frame in own or python if not _is_framework(frame.filename)] or own or python
    chosen = _of_installed_model(python, chosen[:1]) or chosen
    if chosen:
        return tuple(chosen[:_SHOWN])
    if any('autograd' in frame.name for frame in stack):
        return (_BACKWARD,)
    return stack[:3]


def _of_installed_model(python: Sequence[Frame], own: Sequence[Frame]) -> list[Frame]:
    """The frames from the innermost module of an installed model on, if the user's innermost line calls such a module."""
    is_called = False
    found = 0
    for number, frame in enumerate(reversed(python[: python.index(own[0])] if own else ())):
        is_called = is_called or in_package(frame.filename) == _CALLS_MODULES
        if is_called and not _is_framework(frame.filename):
            found = number + 1
    first = python.index(own[0]) - found if found else len(python)
    return [frame for frame in python[first:] if not _is_framework(frame.filename)]


def within_library(stack: Stack, own: tuple[Frame, ...]) -> Optional[Frame]:
    """The innermost library frame, if the innermost own frame does not show what allocated.

    A line that steps an optimizer or starts a backward pass or a training allocates for many purposes. A line that
    calls a function or module of torch allocates for that one.
    """
    if own == (_BACKWARD,):
        nodes = (frame for frame in stack if frame.name.startswith('torch::autograd::'))
        node = next((frame for frame in nodes if 'VariableType' not in frame.name), None)
        return None if node is None else Frame(node.filename, node.line, node.name.partition('(')[0])
    for frame in stack:
        if own and frame is own[0]:
            return None
        if _has_many_purposes(frame):
            return frame
    return None


def _has_many_purposes(frame: Frame) -> bool:
    file = frame.filename
    if not file.endswith('.py') or _is_standard_library(file) or is_generated(file):
        return False
    return frame.name == 'backward' or not _is_operator(file)


@functools.lru_cache(maxsize=4096)
def is_own(filename: str) -> bool:
    """True if the path is of the user's code."""
    return is_of_model(filename) and not is_installed(filename)


@functools.lru_cache(maxsize=4096)
def is_of_model(filename: str) -> bool:
    """True if the path is of the user's code, or of an installed package that may have a model."""
    return (
        filename.endswith('.py')
        and not _is_standard_library(filename)
        and not is_generated(filename)
        and not _is_framework(filename)
    )


@functools.lru_cache(maxsize=4096)
def is_generated(filename: str) -> bool:
    """True if a compiler generated the file."""
    return _GENERATED.search(filename.replace('\\', '/')) is not None


@functools.lru_cache(maxsize=4096)
def is_installed(filename: str) -> bool:
    return any(place in filename for place in _INSTALLED)


@functools.lru_cache(maxsize=4096)
def _is_standard_library(filename: str) -> bool:
    return '/lib/python3' in filename and not is_installed(filename)


@functools.lru_cache(maxsize=4096)
def _is_framework(filename: str) -> bool:
    """True if the path, or the path below the folder of installed packages, is of a framework or of this package."""
    if _OF_PACKAGE.search(filename.replace('\\', '/')):
        return True
    return in_package(filename).startswith(tuple(f'{name}/' for name in _FRAMEWORKS))


@functools.lru_cache(maxsize=4096)
def _is_operator(filename: str) -> bool:
    return in_package(filename).startswith(_OPERATORS)


def in_package(filename: str) -> str:
    """The path below the folder of installed packages: ``torch/optim/adamw.py``."""
    for place in _INSTALLED:
        filename = filename.rpartition(place)[2]
    return filename
