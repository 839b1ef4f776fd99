"""The settings of these functions, which a command's options have checked before."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional, TypedDict, Union

from composer_memprof.messages import check_count, check_switches, must_be

#: The part of its elements that a mask keeps, or ``FILE:LINE=PART``.
Kept = Union[float, str, Sequence[Union[float, str]]]

File = Union[str, 'os.PathLike[str]']


class Settings(TypedDict, total=False):
    """The settings of :func:`~composer_memprof.interface.simulating.simulate`, but ``largest``."""

    arguments: Optional[Mapping[str, Any]]
    gpu: Optional[str]
    memory: Optional[str]
    compute_capability: str
    ranks: Optional[int]
    rank: int
    ranks_per_node: Optional[int]
    steps: int
    evaluation: bool
    devices: Optional[int]
    kept: Kept
    values: bool
    time_limit: float
    find_need: bool
    versus: Optional[File]
    folder: Optional[File]
    trace: Optional[File]


def check_settings(counts: Mapping[str, Any], from_zero: Mapping[str, Any], switches: Mapping[str, Any]) -> None:
    """Refuse a setting that is not allowed.

    >>> check_settings({'ranks': 0}, {}, {})
    Traceback (most recent call last):
    ...
    ValueError: ranks must be a whole number from 1, not 0

    Args:
        counts: whole numbers from 1, or None.
        from_zero: numbers from 0.
        switches: true or false.

    Raises:
        ValueError: naming it, its value and what is allowed.
    """
    for name, value in counts.items():
        if value is not None:
            check_count(name, value)
    for name, value in from_zero.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float('inf'):
            raise must_be(name, 'a number from 0', value)
    check_switches(**switches)


def kept_texts(kept: Kept) -> list[str]:
    """As the command's ``--kept`` takes them.

    >>> kept_texts(0.5), kept_texts(['train.py:41=0.125'])
    (['0.5'], ['train.py:41=0.125'])
    """
    return [str(each) for each in ([kept] if isinstance(kept, (str, int, float)) else kept)]
