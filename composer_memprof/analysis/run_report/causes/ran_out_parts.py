"""Reasons for which memory ran out that lie in parts of the model that are not trained. ``cost`` is the share of what was in use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class UselessGraph:
    """A part of the model that is not trained, such as a teacher, records a graph for backward.

    Args:
        rank (int): the rank that ran out first.
        cost (float): the share of its activations.
        bytes (int): of its activations.
        module (str): its name.
        line (str): that calls it.
    """

    kind: ClassVar[str] = 'useless_graph'
    rank: int
    cost: float
    bytes: int
    module: str
    line: str


@dataclass(frozen=True)
class KeptInCopy:
    """A copy of the model, such as an average of its weights, is a part of the model.

    Args:
        rank (int): the rank that ran out first.
        cost (float): its share.
        bytes (int): of all copies.
        copies (dict[str, int]): bytes by the copy's name.
        state (int): bytes of the model's own state, the copies included.
    """

    kind: ClassVar[str] = 'kept_in_copy'
    rank: int
    cost: float
    bytes: int
    copies: dict[str, int]
    state: int


@dataclass(frozen=True)
class UnusedGradients:
    """Gradients that no optimizer uses: their parameters were meant to be frozen.

    Args:
        rank (int): the rank that ran out first.
        cost (float): the share of the gradients.
        bytes (int): of these gradients.
        modules (dict[str, int]): their bytes by module, layers of one kind together, largest first.
        state (int): bytes of the model's own state, the gradients included.
    """

    kind: ClassVar[str] = 'unused_gradients'
    rank: int
    cost: float
    bytes: int
    modules: dict[str, int]
    state: int
