"""Containers in words, with the limit of one that fills up and then grows no more.

>>> from collections import deque
>>> in_words([1, 2], [])
'a list of 2'
>>> newest = deque([1], maxlen=8)
>>> in_words(newest, [newest])
'a deque of at most 8'
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Sequence
from typing import Any, Optional

import torch

from composer_memprof.vocabulary import AT_MOST

CONTAINERS = (list, set, frozenset, dict, deque)
#: The type of a function with ``functools.lru_cache``.
CACHED = functools._lru_cache_wrapper
#: Names of the attributes in which an object says how many things it holds at most. A length of sequences is none of them.
_LIMITS = frozenset(
    (
        *(
            'capacity',
            'limit',
            'maxlen',
            'maxsize',
            'max_capacity',
            'max_entries',
            'max_history',
            'max_items',
            'max_len',
        ),
        *('max_size', 'max_to_keep', 'num_to_keep', 'keep_last', 'size_limit', 'buffer_size', 'max_buffer_size'),
        *('cache_size', 'max_cache_size', 'history_size', 'memory_size', 'queue_size', 'window_size'),
    )
)


def in_words(container: Any, chain: Sequence[Any]) -> str:
    """A container in words, such as ``a list of 12``, or ``a list of at most 50`` if what keeps it has a limit.

    Args:
        container (Any): of ``CONTAINERS``, or of type ``CACHED``.
        chain (Sequence): what keeps a thing, from that on upwards, each kept by the next.
    """
    kind = 'cache' if isinstance(container, CACHED) else type(container).__name__
    owners = [each for number, each in enumerate(chain) if not _has_attributes_of(each, chain[number + 1 :])]
    limits = [limit for below, owner in zip([None, *owners], owners) if (limit := _limit(owner, below))]
    return f'a {kind}{AT_MOST}{min(limits)}' if limits else f'a {kind} of {length_of(container)}'


def _has_attributes_of(obj: Any, above: Sequence[Any]) -> bool:
    """True for the dict of the attributes of the next object above."""
    return bool(above) and type(obj) is dict and getattr(above[0], '__dict__', None) is obj


def length_of(container: Any) -> int:
    """How many things are in a container."""
    return container.cache_info().currsize if isinstance(container, CACHED) else len(container)


def _limit(owner: Any, below: Any) -> Optional[int]:
    """How many things an object says that it holds at most; None if it does not, or holds more."""
    if isinstance(owner, CACHED):
        return owner.cache_parameters()['maxsize']
    if isinstance(owner, deque) and owner.maxlen is not None:
        return owner.maxlen
    if isinstance(owner, (type, types.ModuleType, types.FunctionType, torch.nn.Module)):
        return None  # of a neural network, a size is another
    held = owner if isinstance(owner, CONTAINERS) else below
    attributes = getattr(owner, '__dict__', None)
    if not isinstance(attributes, dict) or not isinstance(held, CONTAINERS):
        return None
    found = [value for name, value in attributes.items() if name.rpartition('__')[2].strip('_').lower() in _LIMITS]
    return next((value for value in found if type(value) is int and value > 1 and value >= len(held)), None)
